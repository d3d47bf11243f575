// Whole engines in one process, driven by many threads through random programs and every way to end. For sanitizers;
// prints "passed" and a summary.
//
//   engine_stress [--seconds S] [--seed N] [--rounds N] [--ranks 2,3,4] [--ending NAME] [--backends FOLDER]
//                 [--ways shm|tcp|both]
//
// A failure names its seed: `--seed N --rounds 1` runs that round again.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <sstream>
#include <thread>

#include "check.h"
#include "engine/base/log.h"
#include "round.h"

using namespace hvd;
using namespace hvd::native;

namespace {

constexpr int64_t kPatienceNs = 120'000'000'000;  // for one round, under a sanitizer on a busy machine

// Ends the program when a round hangs: nothing else would.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    over_ = true;
    thread_.join();
  }
  void round_begins() { began_ = base::now_ns(); }

 private:
  void watch() {
    while (!over_) {
      if (base::now_ns() - began_ > kPatienceNs) wrong("the round hangs");
      ::usleep(100'000);
    }
  }
  std::atomic<bool> over_{false};
  std::atomic<int64_t> began_{base::now_ns()};
  std::thread thread_;
};

std::vector<int> numbers(const std::string& text) {
  std::vector<int> found;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) found.push_back(std::stoi(part));
  return found;
}

Ending ending_of(const std::string& name) {
  for (Ending e : all_endings())
    if (name == ending_name(e)) return e;
  wrong("there is no ending '" + name + "'");
}

std::vector<Ways> ways_in(const std::string& folder, const std::string& only) {
  const auto library = [&](const std::string& name) -> EngineConfig::Library {
    const std::string path = folder + "/libhvd_backend_" + name + ".so";
    require(std::filesystem::exists(path), "there is no " + path);
    return {name, path};
  };
  const auto shm = library("shm"), tcp = library("tcp");
  std::vector<Ways> found;
  for (const Ways& w :
       {Ways{"shm", shm, {}, shm, false}, Ways{"tcp", {}, tcp, shm, true}, Ways{"both", shm, tcp, shm, true}})
    if (only.empty() || only == w.name) found.push_back(w);
  require(!found.empty(), "there is no way '" + only + "'");
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  RoundOptions options;
  options.ranks = {2, 3, 4};
  options.endings = all_endings();
  double seconds = 10;
  uint64_t rounds = UINT64_MAX;
  std::string only, folder = std::filesystem::path(argv[0]).parent_path();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string what = argv[i], value = argv[i + 1];
    if (what == "--seconds")
      seconds = std::stod(value);
    else if (what == "--seed")
      options.seed = std::stoull(value);
    else if (what == "--rounds")
      rounds = std::stoull(value);
    else if (what == "--ranks")
      options.ranks = numbers(value);
    else if (what == "--ending")
      options.endings = {ending_of(value)};
    else if (what == "--backends")
      folder = value;
    else if (what == "--ways")
      only = value;
    else
      wrong("unknown option " + what);
  }
  // Small pieces, so that even moderate sizes take every path.
  for (const auto& [name, value] : {std::pair{"SHM_CHUNK_KIB", "4"},
                                    {"SHM_SMALL_KIB", "1"},
                                    {"TCP_CHUNK_KIB", "16"},
                                    {"TCP_SMALL_KIB", "2"},
                                    {"TCP_IFACE", "lo"},
                                    {"TCP_RING_RANKS", "3"}})
    ::setenv((std::string("HOROVOD_BACKEND_") + name).c_str(), value, 0);
  options.ways = ways_in(folder, only);
  base::set_log(base::Level::Fatal, false, -1);

  Tally tally;
  {
    Watchdog watchdog;
    const int64_t until = base::now_ns() + static_cast<int64_t>(seconds * 1e9);
    while (tally.rounds < rounds && (rounds != UINT64_MAX || base::now_ns() < until)) {
      watchdog.round_begins();
      run_round(options, tally);
      ++options.seed;
    }
  }
  std::printf("passed: %llu rounds", static_cast<unsigned long long>(tally.rounds));
  for (const auto& [name, n] : tally.of) std::printf(", %s %llu", name.c_str(), static_cast<unsigned long long>(n));
  std::printf("; operations: %llu right, %llu refused as planned, %llu ended; %llu process sets came and went\n",
              static_cast<unsigned long long>(tally.done), static_cast<unsigned long long>(tally.refused),
              static_cast<unsigned long long>(tally.failed), static_cast<unsigned long long>(tally.sets));
  return 0;
}
