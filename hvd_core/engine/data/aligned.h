// Buffers whose addresses a backend would not take: through aligned scratch memory, in steps of a Program. Used by the
// thread that drives the engine.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/data/program.h"

namespace hvd::data {

// Memory at a multiple of `alignment` (a power of two), which may be more than scratch memory has by itself.
char* aligned_scratch(Program& program, uint64_t bytes, uint32_t alignment);

// Calls plan(collective) for a `c` whose buffers are all aligned, with steps around it that copy those that were not.
// Whether an address is aligned is each rank's own affair: a copy more or less changes no collective.
void plan_aligned(Program& program, const plugin::Collective& c, uint32_t alignment, int32_t rank, int32_t size,
                  const std::function<void(const plugin::Collective&)>& plan);

}  // namespace hvd::data
