// How the ranks of a communicator get the same nameless memory, its segment or a window: rank 0 makes it and hands out
// its descriptor over a Unix socket in the abstract namespace (no file). Blocks until done or the deadline; called by
// the thread that creates the communicator or the window.
#pragma once

#include <cstdint>
#include <functional>

#include "host_kernels/descriptor.h"
#include "hvd/backend.hpp"
#include "shared.h"

namespace hvd::shm {

// Where the ranks meet: a store whose keys belong to this creation alone.
struct Meeting {
  Store& store;
  uint32_t rank, size;
};

// The memory that `make` makes; it is called on rank 0 only.
Descriptor exchange_memory(const Meeting& meeting, const std::function<Descriptor()>& make, int64_t deadline_ns);

// Throws ABORTED if the host has given the creation up, because another rank has ended, say.
void check_wanted(const Meeting& meeting);

// On rank 0, once every rank has the memory: deletes the invitation from the store.
void remove_invitation(const Meeting& meeting);

}  // namespace hvd::shm
