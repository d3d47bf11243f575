// The limit to compare with: an allreduce of float32 between exactly two processes, written by hand for that case only.
//
// No lists, no other types, no errors, no sleeping: what remains is the memory traffic. Used by bench.cc.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd::shm_bench {

constexpr uint64_t kBareChunk = 64 << 10;  // bytes
constexpr uint64_t kBareSlots = 8;

struct BareSide {
  alignas(128) std::atomic<uint64_t> shown;
  alignas(128) std::atomic<uint64_t> reduced;
  alignas(128) char slot[kBareSlots][kBareChunk];
};

struct BareSegment {
  BareSide side[2];
};

// Sums `n` floats in place with the other side. `at` counts chunks over the life of the segment.
void bare_allreduce(BareSegment* segment, int rank, float* data, uint64_t n, uint64_t* at);

}  // namespace hvd::shm_bench
