// Copies buffers at addresses that a backend does not accept through aligned scratch memory. Used by the driver.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/data/schedule.h"

namespace hvd::data {

bool misaligned(const hvd_buf& b, uint32_t alignment);

// Scratch memory at a multiple of `alignment`, a power of two of any size.
char* aligned_scratch(Schedule& schedule, uint64_t bytes, uint32_t alignment);

// Calls write(collective) with `c` on aligned buffers, and adds steps before and after it that copy misaligned buffers.
// Ranks may differ in which buffers are misaligned: copies change no collective.
void write_aligned(Schedule& schedule, const plugin::Collective& c, uint32_t alignment, int32_t rank, int32_t size,
                   const std::function<void(const plugin::Collective&)>& write);

}  // namespace hvd::data
