// Gives Python's lock up for a scope, for calls that wait.
//
// It stands in for pybind11::gil_scoped_release. When the interpreter ends, a daemon thread cannot take the lock any
// more: Python up to 3.13 ends such a thread by unwinding its stack, and a destructor that is unwound ends the process
// (std::terminate). The thread stays in the destructor here instead, as Python 3.14 does it, until the process is gone.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace hvd::bind {

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

}  // namespace hvd::bind
