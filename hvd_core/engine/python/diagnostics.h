// Log lines and texts for Python (hvd_core/_base/logs.py).
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::python {

void bind_log_lines(pybind11::module_& m);

// hvd_core._core.inspect_backend, query_backend and backend_fact: description and abilities of a library, for
// selection, reports and tools.
//
// They load the library for good. Python's lock is released while the library's code runs.

void bind_inspect(pybind11::module_& m);

// Snapshots of ranks for Python: what `hvd doctor` shows.

void bind_snapshots(pybind11::module_& m);

}  // namespace hvd::python
