// The ranks of a communicator to be made agree on its options first, over the host's store.
#pragma once

#include <hvd/backend.hpp>

// The same on all ranks.
struct Agreement {
  bool nonblocking = false, exact = true, float8 = false;
  uint64_t pack_below = 0;
};

// Waits until all ranks have come, with their devices open: NCCL's own rendezvous has no deadline, and a rank that
// failed before it would leave the others waiting there. The options are rank 0's. `float8`: does this rank's device
// reduce float8? Throws HVD_E_TIMEOUT, and HVD_E_INVALID for an option whose text is not a value of it.
Agreement agree(const hvd::CommInit& init, bool float8);

// This process's own options; for use before a communicator exists.
Agreement options_of_this_rank();
