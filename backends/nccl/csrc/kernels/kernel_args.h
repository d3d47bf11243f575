// The parameters of the kernels: one struct per kernel, passed by value as its only parameter. For the code that
// launches them (cuda_kernels.cc), for the kernels, and for the code that executes them on the host (kernels_host.cc).
// Plain data, no CUDA header.
#pragma once

#include <cstdint>

namespace hvd_kernels {

// Threads are taken in warps of this many, and each warp works by itself: nothing is exchanged between threads.
constexpr uint32_t kLanes = 32;
constexpr uint32_t kThreads = 128;  // per block
// As many blocks as a multiprocessor is to hold at a time, which says how many registers a thread may have.
constexpr uint32_t kBlocksPerProcessor = 5;

// Work is given to warps in tiles, of a size that is chosen for each launch: small enough that every processor has some
// tiles, and large enough that finding a tile costs less than its work.
constexpr uint32_t kSmallestTile = 4096;  // bytes of the wider side; all are powers of two from here

// How elements are copied.
enum CopyPath : uint8_t {
  kRaw = 0,      // bits as they are; `count` in bytes
  kInteger = 1,  // through int64, kept modulo the width
  kFloat = 2,    // through float: both sides and the factor fit into it
  kDouble = 3    // through double
};

// Items that are treated alike; they stand together.
struct CopyKind {
  double scale;
  uint32_t items_end;  // index after the last item of this kind
  uint8_t src_dtype, dst_dtype;
  uint8_t path;
  uint8_t reserved;
};

struct CopyItem {
  uint64_t src, dst;   // addresses of any alignment
  uint32_t count;      // elements, at most kMostElements
  uint32_t tiles_end;  // number after its last tile, counted through all items
};
constexpr uint32_t kMostElements = 1u << 30;

// 4 KiB are the most that a kernel's parameters may have on every driver. Longer lists lie in device memory.
constexpr uint32_t kInlineKinds = 8;
constexpr uint32_t kInlineItems = 163;

// hvd_copy_scale
struct CopyArgs {
  uint64_t table;  // device address of CopyKind[n_kinds], CopyItem[n_items]; 0: they are those below
  uint32_t n_kinds, n_items;
  uint32_t tiles, tile_bytes;
  CopyKind kinds[kInlineKinds];
  CopyItem items[kInlineItems];
};
static_assert(sizeof(CopyKind) == 16 && sizeof(CopyItem) == 24, "the kernels count on this");
static_assert(sizeof(CopyArgs) <= 4096, "more than a kernel's parameters may have");

// hvd_reduce: inout[i] = inout[i] op in[i]
struct ReduceArgs {
  uint64_t inout, in;
  uint64_t count;
  int32_t dtype, op;  // HVD_SUM, HVD_PROD, HVD_MIN or HVD_MAX
};

}  // namespace hvd_kernels
