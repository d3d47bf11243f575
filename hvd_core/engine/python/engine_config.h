// Converts the dict that hvd_core._runtime.runtime makes of environment and bootstrap into the engine's configuration.
// With the GIL, while an engine is made.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/core/engine.h"

namespace hvd::python {

EngineConfig config_of(const pybind11::dict& d);
// The part that names the backends of host memory and of devices.
void read_choice(const pybind11::dict& d, EngineConfig& config);
// The job's store. A job of one process gets a private one.
std::shared_ptr<plugins::Store> store_of(const pybind11::dict& d);
// Sets the log, and the sink for backends' lines. Both are global in the process.
void set_log_from(const pybind11::dict& d);
// Backends' threads stay on the cores of the calling thread, also if another thread starts them.
void keep_threads_within(int32_t engine_core);

}  // namespace hvd::python
