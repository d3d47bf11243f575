// The Python class FrameSeals, and the function encryption_problem().
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::bind {

void bind_frame_seals(pybind11::module_& m);

}  // namespace hvd::bind
