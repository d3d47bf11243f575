// Log lines and texts for Python (hvd_core/_base/logs.py).
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::bind {

void bind_log_lines(pybind11::module_& m);

}  // namespace hvd::bind
