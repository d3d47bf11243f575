// The phases of plugins that Python runs (hvd_core/_runtime/engine_start.py): their timeout, and an exit() of the
// process in one.
#pragma once

#include <memory>

namespace hvd {
class Engine;
}

namespace hvd::python {

// From now on, an exit() that a backend's code calls while this engine is at work is an error that names the backend.
void watch_exit(const std::shared_ptr<Engine>& engine);

}  // namespace hvd::python
