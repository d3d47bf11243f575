// N control nodes in one process, joined by queues, on a clock that the caller moves: the engine's real protocol code
// under a scheduler that can try any interleaving. For the tests of the protocol. Called with Python's lock.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::python {
void bind_sim(pybind11::module_& m);
}  // namespace hvd::python
