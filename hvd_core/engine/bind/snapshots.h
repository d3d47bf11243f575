// Snapshots of ranks for Python: what `hvd doctor` shows.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::bind {

void bind_snapshots(pybind11::module_& m);

}  // namespace hvd::bind
