// Converts arguments of a call from Python. The engine's own code does this, not pybind11's dispatch, so that a wrong
// argument is reported to the other ranks like all mistakes. With the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

namespace hvd::python {

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

// A str as UTF-8. Python's strings may hold surrogates (of file names, say), which UTF-8 lacks: they become "\\udce9".
inline std::string utf8_of(pybind11::handle text) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size)) return {utf8, static_cast<size_t>(size)};
  PyErr_Clear();
  const auto escaped =
      pybind11::reinterpret_steal<pybind11::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!escaped) throw pybind11::error_already_set();
  return std::string(escaped);
}

// The name of a call; None is a call without a name. Throws TypeError for a value that is not a str.
inline std::optional<std::string> name_argument(pybind11::handle name) {
  if (name.is_none()) return std::nullopt;
  if (!PyUnicode_Check(name.ptr()))
    throw pybind11::type_error("name must be a str or None, but is " + pybind11::repr(name).cast<std::string>());
  return utf8_of(name);
}

}  // namespace hvd::python
