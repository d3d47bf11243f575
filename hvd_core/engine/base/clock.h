// The clocks, in nanoseconds. Any thread.
#pragma once

#include <time.h>

#include <cstdint>

namespace hvd {

inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  ::clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The clock of all deadlines.
inline int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

// Since 1970.
inline int64_t wall_clock_ns() { return clock_ns(CLOCK_REALTIME); }

}  // namespace hvd
