// Gives Python's lock up for a scope, for calls that wait.
//
// It stands in for pybind11::gil_scoped_release. When the interpreter ends, a daemon thread cannot take the lock any
// more: Python up to 3.13 ends such a thread by unwinding its stack, and a destructor that is unwound ends the process
// (std::terminate). The thread stays in the destructor here instead, as Python 3.14 does it, until the process is gone.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/base/log.h"

namespace hvd::python {

// Takes Python's lock; does not return if the interpreter has ended meanwhile.
inline void take_python_lock(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    for (;;) ::pause();
  }
}

class WithoutPythonLock {
 public:
  WithoutPythonLock() : state_(PyEval_SaveThread()) {}
  ~WithoutPythonLock() { take_python_lock(state_); }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* state_;
};

// A wait of a Python thread for the engine: without Python's lock, in slices, with a check for signals after each.

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
    const int64_t left = deadline_ns == kNone ? kNone : deadline_ns - base::now_ns();
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

}  // namespace hvd::python
