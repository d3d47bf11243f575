// A wait of a Python thread for the engine: without Python's lock, in slices, with a check for signals after each.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/bind/python_lock.h"
#include "engine/observe/log.h"

namespace hvd::bind {

// A wait releases Python's lock for this time, then checks for signals.
constexpr int64_t kSignalSliceNs = 100'000'000;

// The time of a further slice. Python handles signals on the main thread alone; hundreds of waiting threads that took
// Python's lock ten times a second would leave little of it to the others.
inline int64_t further_slice_ns() { return ::gettid() == ::getpid() ? kSignalSliceNs : 20 * kSignalSliceNs; }

// Calls `wait(ns)`, which returns whether the condition is met, until `is_met()`. Returns false if the deadline passed
// first. Throws what a signal's handler raised.
template <typename Condition, typename Wait>
bool wait_in_slices(Condition is_met, Wait wait, int64_t deadline_ns = std::numeric_limits<int64_t>::max()) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t slice = kSignalSliceNs;
  while (!is_met()) {
    const int64_t left = deadline_ns == kNone ? kNone : deadline_ns - observe::now_ns();
    if (left <= 0) return false;
    bool met;
    {
      WithoutPythonLock unlocked;
      met = wait(std::min(left, slice));
    }
    if (met) continue;
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    slice = further_slice_ns();  // two calls of the system, so not for an operation that takes microseconds
  }
  return true;
}

}  // namespace hvd::bind
