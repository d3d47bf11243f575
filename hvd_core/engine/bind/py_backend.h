// hvd_core._core.PythonBackendTable: what hvd_core/backends/python/backend.py runs a backend class with.
//
// Its functions are called by that module's own threads, with Python's lock, which those that sleep let go.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::bind {

void bind_py_backend(pybind11::module_& m);

}  // namespace hvd::bind
