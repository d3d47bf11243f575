// What the ranks of a communicator to be made tell each other first, over the host's store.
#pragma once

#include <hvd/backend.hpp>

// The same on all ranks.
struct Meeting {
  bool nonblocking = false, exact = true, float8 = false;
  uint64_t pack_below = 0;
};

// Waits until all have come, with their devices open: NCCL's own way to meet knows no deadline, and a rank that fails
// before it would leave the others there. Options are rank 0's. `float8`: whether this rank's device reduces such.
// Throws HVD_E_TIMEOUT, and HVD_E_INVALID for an option that is no such value.
Meeting meet(const hvd::CommInit& init, bool float8);

// What this process's options say; before a communicator exists.
Meeting options_of_this_rank();
