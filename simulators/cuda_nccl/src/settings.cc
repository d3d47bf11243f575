// Numbers that cannot be read count as not set.
#include "settings.h"

#include <cstdlib>

namespace cusim {
namespace {

int number(const char* name, int fallback) {
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  return *end == '\0' ? static_cast<int>(value) : fallback;
}

}  // namespace

const Settings& settings() {
  static const Settings made = [] {
    Settings s{};
    s.driver_version = number("SIM_CUDA_DRIVER_VERSION", 12080);
    s.arch = number("SIM_CUDA_ARCH", 90);
    s.nccl_version = number("SIM_NCCL_VERSION", 22703);
    s.connect_ms = number("SIM_NCCL_CONNECT_MS", 3);
    s.silent_death = number("SIM_NCCL_SILENT_DEATH", 0) == 1;
    s.multi_rank = s.nccl_version >= 23003 && number("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
    return s;
  }();
  return made;
}

}  // namespace cusim
