// Copying into and out of the shared segment. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::shm {

constexpr uint64_t kBlock = 8192;  // bytes that are reduced, then copied while they are in the first-level cache

// memcpy, but from 1 KiB on in the way that suits memory which another core has just read: it takes over the
// lines without fetching what they held.
void copy_bytes(void* to, const void* from, size_t n);

}  // namespace hvd::shm
