// The dict that hvd_core.runtime makes of environment and bootstrap, as the engine's configuration. Called with
// Python's lock, while an engine is being made.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "engine/engine.h"

namespace hvd::bind {

EngineConfig config_of(const pybind11::dict& d);
// The job's store; one of its own for a job of one process.
std::shared_ptr<plugin::Store> store_of(const pybind11::dict& d);
// The log and where backends' lines go are the process's, not an engine's.
void set_log_from(const pybind11::dict& d);
// Backends' threads keep to the cores of the calling thread, wherever they are started from.
void keep_threads_within(int32_t engine_core);

}  // namespace hvd::bind
