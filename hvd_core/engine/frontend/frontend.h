// The engine for front ends without Python: the table of hvd/frontend_abi.h, and the engine that it serves now.
//
// The table lives as long as the process and has to find the process's engine. So this is one of the few places with
// state that is global in the process: the others are the log, loaded backends with their sinks (plugins/host_api.h)
// and the record of calls (plugins/backend_call.h), and the hooks for forks. Any thread, without Python's lock.
#pragma once

#include <hvd/frontend_abi.h>

#include <memory>

#include "engine/calls/signature_cache.h"
#include "engine/core/engine.h"
#include "engine/frontend/completions.h"

namespace hvd::frontend {

// One engine as the table sees it. Calls under way keep it alive.
class Frontend {
 public:
  explicit Frontend(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Engine& engine() { return *engine_; }
  Completions& completions() { return completions_; }
  calls::KnownSignatures& known_signatures() { return known_signatures_; }
  // To be called after the engine was closed, which ends every request. Returns when all done() functions have run.
  void finish() { completions_.finish(); }

 private:
  const std::shared_ptr<Engine> engine_;
  Completions completions_;
  calls::KnownSignatures known_signatures_;
};

const hvd_fe_table* frontend_table();

// From now on the table serves this engine, until it is withdrawn or replaced.
void serve(std::shared_ptr<Frontend> frontend);
void withdraw(const Frontend& frontend);
// In a forked child the table's engine is the parent's: calls are refused until this process has an engine of its own.
void in_forked_child() noexcept;

}  // namespace hvd::frontend
