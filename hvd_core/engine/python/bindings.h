// What each source of this folder adds to the module hvd_core._core.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::python {

class PyEngine;

// Sets the Python exception for the C++ exception that is being handled. (module.cc)
void set_python_error();

void bind_tensors(pybind11::module_& m);
void bind_engine(pybind11::module_& m);
void bind_allreduce(pybind11::module_& m, pybind11::class_<PyEngine>& engine);
void bind_python_backend(pybind11::module_& m);
void bind_plugin_phases(pybind11::module_& m);  // process_hooks.cc
void bind_diagnostics(pybind11::module_& m);
void bind_store(pybind11::module_& m);

}  // namespace hvd::python
