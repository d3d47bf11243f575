// The clock of all deadlines. Any thread.
#ifndef HVD_BACKEND_CLOCK_HPP_
#define HVD_BACKEND_CLOCK_HPP_

#include <time.h>

#include <cstdint>

#pragma GCC visibility push(hidden)
namespace hvd {

inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  ::clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

inline int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_CLOCK_HPP_
