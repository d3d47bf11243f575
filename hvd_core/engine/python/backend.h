// hvd_core._core.PythonBackendTable, with which hvd_core/backends/python_backend.py runs a backend class.
//
// Its functions are called by that module's own threads, with Python's lock. Functions that sleep release the lock.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::python {

void bind_py_backend(pybind11::module_& m);

}  // namespace hvd::python
