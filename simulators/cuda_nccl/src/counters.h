// How often each function was called in this process. Tests read it by sim_count().
#pragma once

#include <atomic>
#include <cstdint>

namespace cusim {

using Counter = std::atomic<uint64_t>;

// Lives for ever, the same for equal names.
Counter& counter(const char* name);

// First line of each exported function.
#define SIM_CALLED                                                     \
  static ::cusim::Counter& calls_of_this = ::cusim::counter(__func__); \
  ++calls_of_this

}  // namespace cusim
