// The end of the timeline of a rank that was killed. Its writer has died with the events of the last moments, which are
// in the rank's flight recorder: another rank of the host appends them to the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recorder/event_ring.h"

namespace hvd::recorder {

// The number of the text in a rank's ring that is the path of the file which its timeline writes; an empty text: none.
inline constexpr uint32_t kTimelinePath = ~uint32_t{0} - 1;

// Appends to the file what the ring of the dead rank knows and the file does not, when the other ranks of the host
// became ready, and the cause, with which the job ends. `rings`: of `bytes` bytes each, of all ranks of the host. The
// first of several ranks that call it writes. A file that cannot be completed stays as it is.
//
// Called by the thread that drives the engine of a survivor.
void complete_timeline(const void* dead, const std::vector<const void*>& rings, uint64_t bytes, int64_t clock_offset_ns,
                       const std::string& cause) noexcept;

}  // namespace hvd::recorder
