// How one collective is carried out in shared memory: the algorithms, and the view of the segment that they work on.
//
// Used by the thread that is inside a call on the communicator.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host_kernels/collective.h"
#include "segment.h"
#include "shared.h"

namespace hvd::shm {

struct SegmentView;

// A small operation is one hop: every rank shows all it has (put), then reads what all ranks show (get).
// A larger one is a pipeline of chunks with up to three stages; stage s of chunk k runs in iteration k + s, and may
// read what all ranks have shown in stage s - 1 of that chunk.
struct Algorithm {
  uint64_t lag;  // number of stages - 1
  bool sliced;   // a chunk holds one slice per rank, and the extent is that of the longest slice
  void (*put)(const SegmentView&, Collective&, char* to);
  void (*get)(const SegmentView&, Collective&);
  void (*stage[3])(const SegmentView&, Collective&, uint64_t chunk);
};

// The segment as one rank sees it during one operation.
struct SegmentView {
  const Segment* segment;
  uint32_t rank, size;
  uint64_t seq;          // of the operation, for the small areas
  uint64_t chunk_base;   // chunks that this communicator has used before
  uint64_t chunk_bytes;  // per rank and chunk; a multiple of 64 * size
  const void** sources;  // scratch: one pointer per rank
  char* scratch;         // of this rank alone, small_bytes long

  char* slot(uint32_t r, uint64_t chunk) const { return segment->slot(r, chunk_base + chunk); }
  // What rank r shows in a small operation of `bytes` bytes.
  char* shown(uint32_t r, uint64_t bytes) const {
    if (bytes > kInline) return segment->small(r, seq);
    return reinterpret_cast<char*>(segment->ctl(r).hello[seq & 1].payload);
  }
};

// Copies `bytes` bytes at stream position `at` to contiguous memory, and back.
void gather(Cursor* from, uint64_t at, uint64_t bytes, char* to);
void scatter(Cursor* to, uint64_t at, uint64_t bytes, const char* from);

extern const Algorithm kAllreduce, kReduce, kReducescatter, kBroadcast, kAllgather, kAlltoall, kBarrier;

}  // namespace hvd::shm
