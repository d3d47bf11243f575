// load_driver LIBRARY NAME: loads a file and prints its tables on one line, or the refusal.
#include "support.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string error = test::thrown([&] {
    auto b = hvd::plugins::Backend::load_library(argv[1], argv[2]);
    std::printf("%s %s %s%s%s\n", b->name().c_str(), b->version().c_str(), b->tag().c_str(),
                b->has_device() ? " device" : "", b->has_comm() ? " comm" : "");
  });
  if (!error.empty()) std::printf("%s\n", error.c_str());
  return 0;
}
