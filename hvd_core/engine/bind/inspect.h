// hvd_core._core.inspect_backend, query_backend and backend_fact: description and abilities of a library, for
// selection, reports and tools.
//
// They load the library for good. Python's lock is released while the library's code runs.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::bind {

void bind_inspect(pybind11::module_& m);

}  // namespace hvd::bind
