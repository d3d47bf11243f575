// The engine for front ends without Python: the table of hvd/frontend_abi.h, and which engine it means at the moment.
//
// The table has to live as long as the process and to know the process's engine, so this is one of the few places with
// state of the process's (the fork hook of the binding is another). Any thread, none with Python's lock.
#pragma once

#include <hvd/frontend_abi.h>

#include <memory>

#include "engine/calls/completions.h"
#include "engine/engine.h"

namespace hvd::calls {

// One engine as the table sees it. Calls that have begun keep it.
class Frontend {
 public:
  explicit Frontend(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Engine& engine() { return *engine_; }
  Completions& completions() { return completions_; }
  // After the engine has been closed, which has ended every request: returns when all callers have been told.
  void finish() { completions_.finish(); }

 private:
  const std::shared_ptr<Engine> engine_;
  Completions completions_;
};

const hvd_fe_table* frontend_table();

// From now on the table means this engine, until it is withdrawn or another one comes.
void serve(std::shared_ptr<Frontend> frontend);
void withdraw(const Frontend& frontend);
// The table's engine is the parent's: calls are refused until this process has one of its own.
void in_forked_child() noexcept;

}  // namespace hvd::calls
