// Releases the GIL for a scope, for calls that wait.
//
// It replaces pybind11::gil_scoped_release. When the interpreter ends, a daemon thread cannot acquire the GIL any more:
// Python up to 3.13 ends such a thread by unwinding its stack, and a destructor that is unwound ends the process
// (std::terminate). The thread stays in the destructor here instead, as Python 3.14 does it, until the process is gone.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/base/log.h"

namespace hvd::python {

// Acquires the GIL; does not return if the interpreter has ended meanwhile.
inline void acquire_gil(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) ::pause();
  }
}

class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { acquire_gil(state_); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

// A wait of a Python thread for the engine releases the GIL for this time, then checks for signals.
constexpr int64_t kSignalSliceNs = 100'000'000;
constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

inline int64_t deadline_in(double seconds) {
  return base::now_ns() + static_cast<int64_t>(std::min(seconds, 1e9) * 1e9);
}

// Calls `wait(ns)` without the GIL, in slices, until `is_met()`. Returns false if the deadline passes first. Throws
// what a signal's handler raised.
template <typename Condition, typename Wait>
bool wait_in_slices(Condition is_met, Wait wait, int64_t deadline_ns = kNoDeadline) {
  int64_t slice = kSignalSliceNs;
  while (!is_met()) {
    const int64_t left = deadline_ns == kNoDeadline ? kNoDeadline : deadline_ns - base::now_ns();
    if (left <= 0) return false;
    bool met;
    {
      ReleaseGil released;
      met = wait(std::min(left, slice));
    }
    if (met) continue;
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    // Python handles signals on the main thread alone; hundreds of waiting threads that took the GIL ten times a second
    // would leave little of it to the others.
    if (::gettid() != ::getpid()) slice = 20 * kSignalSliceNs;
  }
  return true;
}

}  // namespace hvd::python
