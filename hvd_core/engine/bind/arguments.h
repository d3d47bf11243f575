// Converts arguments of a call from Python. The engine's own code does this, not pybind11's dispatch, so that a wrong
// argument is reported to the other ranks like all mistakes. Called with Python's lock.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace hvd::bind {

// Throws TypeError: "<name> must be <what>, but is <value>".
template <typename T>
T argument(pybind11::handle value, const char* name, const char* what) {
  try {
    return value.cast<T>();
  } catch (const pybind11::cast_error&) {
    throw pybind11::type_error(std::string(name) + " must be " + what + ", but is " +
                               pybind11::repr(value).cast<std::string>());
  }
}

}  // namespace hvd::bind
