// Counters by name; what tests ask for by name, too.
#include "counters.h"

#include <map>
#include <mutex>
#include <string>

#include "cuda_abi.h"

namespace cusim {
namespace {

struct Counters {
  std::mutex mutex;
  std::map<std::string, Counter> by_name;
};

Counters& counters() {
  static auto* all = new Counters;
  return *all;
}

}  // namespace

Counter& counter(const char* name) {
  const std::lock_guard<std::mutex> lock(counters().mutex);
  return counters().by_name[name];
}

}  // namespace cusim

// Calls of `function` since the process began. Names that are no function's: "contexts", contexts that came into being;
// "implicit synchronisations", waits of the host's inside functions that are not called so; "collectives", what NCCL
// was given; "bytes reduced", by NCCL.
SIM_EXPORT uint64_t sim_count(const char* function) { return cusim::counter(function); }
