// Reading of options; see options.h.
#include "options.h"

#include <cstdlib>
#include <string>

#include "kernels.h"

namespace hvd::host_kernels {

uint64_t number_option(const char* key, uint64_t fallback, uint64_t low, uint64_t high) {
  const std::string text = option(key, std::to_string(fallback));
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (end != text.c_str() && *end == '\0' && value >= low && value <= high) return value;
  log(HVD_LOG_WARN, __FILE__, __LINE__,
      std::string("option ") + key + " = '" + text + "' is not a number from " + std::to_string(low) + " to " +
          std::to_string(high) + "; using " + std::to_string(fallback));
  return fallback;
}

void choose_kernels_by_option() {
  const std::string isa = option("isa", "auto");
  if (choose_kernels(isa.c_str())) return;
  log(HVD_LOG_WARN, __FILE__, __LINE__,
      std::string("option isa = '") + isa + "' names kernels that this processor cannot run; using the best");
}

}  // namespace hvd::host_kernels
