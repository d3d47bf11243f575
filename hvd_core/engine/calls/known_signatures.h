// The signatures of the calling thread's last reductions. A training step repeats the calls of the step before, and the
// signature of a call that is like an earlier one need not be checked and encoded again.
#pragma once

#include "engine/control/signature.h"
#include "engine/queue/call.h"

namespace hvd::calls {

// The signature of an earlier allreduce on host memory that asks for the same, with tensors of the same types and
// shapes; null if this thread remembers none. Such a call needs no further checks of its inputs.
control::SigRef known_signature(const queue::Call& call);

// Remembers the signature of a call that has passed its checks, in place of another one.
void remember_signature(const queue::Call& call, const control::SigRef& signature);

}  // namespace hvd::calls
