// Events of the process that concern its engines: forks, exit(), and the phases of plugins that Python runs
// (hvd_core/_runtime/engine_start.py), which have a timeout.
#pragma once

namespace hvd {
class Engine;
}

namespace hvd::python {

// While it exists, a forked child is notified that this engine is its parent's, and an exit() that a backend's code
// calls is an error that names the backend.
class EngineHooks {
 public:
  // Before the first engine of this process is made.
  static void install();
  explicit EngineHooks(Engine& engine);
  ~EngineHooks();
  EngineHooks(const EngineHooks&) = delete;
  EngineHooks& operator=(const EngineHooks&) = delete;

 private:
  Engine& engine_;
};

}  // namespace hvd::python
