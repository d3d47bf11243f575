// How the ranks of a communicator get the same nameless segment: rank 0 makes it and hands out its descriptor over a
// Unix socket in the abstract namespace (no file). Blocks until done or the deadline; called once, from create.
#pragma once

#include <cstdint>

#include "hvd/backend_abi.h"

namespace hvd::shm {

// On success *fd is the segment, owned by the caller. `slot_bytes` and `small_bytes` count on rank 0 only.
hvd_rc exchange_segment(const hvd_comm_args& args, uint64_t slot_bytes, uint64_t small_bytes, int64_t deadline_ns,
                        int* fd, hvd_error* err);

// Rank 0, once everybody has it: removes what was put in the store.
void forget_segment(const hvd_comm_args& args);

}  // namespace hvd::shm
