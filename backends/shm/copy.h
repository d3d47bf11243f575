// Copying into and out of the shared segment. Any thread.
#pragma once

#include <cstddef>

namespace hvd::shm {

// memcpy, but from 1 KiB on in the way that suits memory which another core has just read: it takes over the
// lines without fetching what they held.
void copy_bytes(void* to, const void* from, size_t n);

}  // namespace hvd::shm
