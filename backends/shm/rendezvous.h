// How the ranks of a communicator get the same nameless segment: rank 0 makes it and hands out its descriptor over a
// Unix socket in the abstract namespace (no file). Blocks until done or the deadline; called once, from the
// constructor.
#pragma once

#include <cstdint>

#include "host_kernels/descriptor.h"
#include "hvd/backend.hpp"
#include "shared.h"

namespace hvd::shm {

// The segment. `slot_bytes` and `small_bytes` count on rank 0 only.
Descriptor exchange_segment(const CommInit& init, uint64_t slot_bytes, uint64_t small_bytes, int64_t deadline_ns);

// Throws ABORTED if the host has given the creation up, because another rank has ended, say.
void check_wanted(const CommInit& init);

// On rank 0, once every rank has the segment: deletes the invitation from the store.
void remove_invitation(const CommInit& init);

}  // namespace hvd::shm
