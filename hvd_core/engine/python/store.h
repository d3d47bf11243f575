// The Python class FrameSeals, and the function encryption_problem().
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::python {

void bind_frame_seals(pybind11::module_& m);

// The Python class StoreServer.

void bind_store_server(pybind11::module_& m);

}  // namespace hvd::python
