// One execution of a collective in a compiled program. See collective.cc.
#pragma once

#include <hvd/frontend_abi.h>

#include "xla_ffi.h"

namespace hvd_jax {

// The engine's table, null until Python has passed it.
const hvd_fe_table* engine();
void set_engine(const hvd_fe_table* table);

// Begins the collective that the call describes. Completes the call's future when it is done, on a thread of the
// engine. Never waits: XLA goes on with work that does not depend on the result. Returns an error for a call that
// cannot be begun.
xla::Error* begin_collective(xla::CallFrame* frame);

// Refuses the collective on all ranks: for programs on devices whose memory this library cannot read.
xla::Error* refuse_collective(xla::CallFrame* frame);

}  // namespace hvd_jax
