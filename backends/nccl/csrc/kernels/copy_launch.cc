// See copy_launch.h.
#include "copy_launch.h"

#include <algorithm>
#include <cstring>

#include "memory.h"

namespace hvd_kernels {
namespace {

// At least so many for each warp, so that none has much more to do than another.
constexpr uint32_t kTilesPerWarp = 4;
constexpr uint32_t kWarps = kThreads / kLanes;
constexpr uint32_t kLargestTile = 1u << 20;

// Then a product in float is that of a conversion in double, rounded once: a product of floats is exact in double.
bool fits_float(double factor) { return static_cast<double>(static_cast<float>(factor)) == factor; }

CopyKind kind_for(const Copy& c) {
  CopyKind kind;
  std::memset(&kind, 0, sizeof(kind));
  kind.scale = c.scale == 0 ? 1.0 : c.scale;
  kind.src_dtype = static_cast<uint8_t>(c.src_dtype);
  kind.dst_dtype = static_cast<uint8_t>(c.dst_dtype);
  if (c.src_dtype == c.dst_dtype && kind.scale == 1.0) {
    kind.path = kRaw;
    kind.src_dtype = kind.dst_dtype = HVD_UINT8;  // so that copies of all types are of one kind
  } else if (is_integer(c.src_dtype) && is_integer(c.dst_dtype) && kind.scale == 1.0) {
    kind.path = kInteger;
  } else if (is_small_float(c.src_dtype) && is_small_float(c.dst_dtype) &&
             (c.src_dtype == c.dst_dtype || fits_float(kind.scale))) {
    kind.path = kFloat;
  } else {
    kind.path = kDouble;
  }
  return kind;
}

bool alike(const CopyKind& a, const CopyKind& b) {
  return a.path == b.path && a.src_dtype == b.src_dtype && a.dst_dtype == b.dst_dtype && a.scale == b.scale;
}

uint32_t wider(const CopyKind& kind) { return std::max(bytes_of(kind.src_dtype), bytes_of(kind.dst_dtype)); }

// Pieces that a 32-bit count holds; of plain copies it counts bytes.
uint64_t pieces(uint64_t count) { return (count + kMostElements - 1) / kMostElements; }
uint64_t units(const Copy& c, const CopyKind& kind) {
  return kind.path == kRaw ? c.count * bytes_of(c.src_dtype) : c.count;
}

uint32_t tile_for(uint64_t bytes, uint32_t processors) {
  const uint64_t wanted = bytes / (uint64_t{processors} * kBlocksPerProcessor * kWarps * kTilesPerWarp);
  uint32_t tile = kSmallestTile;
  while (2 * tile <= wanted && tile < kLargestTile) tile *= 2;
  return tile;
}

}  // namespace

void prepare_copies(const std::vector<Copy>& copies, uint32_t processors, CopyLaunch& launch) {
  std::vector<CopyKind> kinds;
  std::vector<uint32_t> kind_of_copy(copies.size());
  uint64_t bytes = 0;
  uint32_t n_items = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    const CopyKind kind = kind_for(copies[i]);
    // Mostly it is that of the one before.
    uint32_t k = i == 0 ? 0 : kind_of_copy[i - 1];
    if (kinds.empty() || !alike(kinds[k], kind)) {
      for (k = 0; k < kinds.size() && !alike(kinds[k], kind); ++k) {
      }
      if (k == kinds.size()) kinds.push_back(kind);
    }
    kind_of_copy[i] = k;
    const uint64_t n = units(copies[i], kind);
    kinds[k].items_end += static_cast<uint32_t>(pieces(n));
    n_items += static_cast<uint32_t>(pieces(n));
    bytes += n * wider(kind);
  }

  CopyArgs& args = launch.args;
  args.table = 0;
  args.n_kinds = static_cast<uint32_t>(kinds.size());
  args.n_items = n_items;
  args.tiles = 0;
  args.tile_bytes = tile_for(bytes, processors);
  launch.blocks = 0;
  launch.table.clear();
  CopyKind* all_kinds = args.kinds;
  CopyItem* items = args.items;
  if (args.n_kinds > kInlineKinds || n_items > kInlineItems) {
    launch.table.resize(args.n_kinds * sizeof(CopyKind) + n_items * sizeof(CopyItem));
    all_kinds = reinterpret_cast<CopyKind*>(launch.table.data());
    items = reinterpret_cast<CopyItem*>(launch.table.data() + args.n_kinds * sizeof(CopyKind));
  }

  // Where the next item of each kind goes.
  std::vector<uint32_t> next(kinds.size());
  uint32_t end = 0;
  for (size_t k = 0; k < kinds.size(); ++k) {
    next[k] = end;
    end = kinds[k].items_end += end;
    all_kinds[k] = kinds[k];
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    const CopyKind& kind = kinds[kind_of_copy[i]];
    const uint32_t src_bytes = bytes_of(kind.src_dtype), dst_bytes = bytes_of(kind.dst_dtype);
    const uint64_t n = units(copies[i], kind);
    for (uint64_t at = 0; at < n; at += kMostElements) {
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(n - at, kMostElements));
      items[next[kind_of_copy[i]]++] = {copies[i].src + at * src_bytes, copies[i].dst + at * dst_bytes, count, 0};
    }
  }
  size_t k = 0;
  for (uint32_t i = 0; i < n_items; ++i) {
    while (kinds[k].items_end <= i) ++k;
    const uint32_t tile_elements = args.tile_bytes / wider(kinds[k]);
    args.tiles += (items[i].count + tile_elements - 1) / tile_elements;
    items[i].tiles_end = args.tiles;
  }
  launch.blocks = std::min((args.tiles + kWarps - 1) / kWarps, processors * kBlocksPerProcessor);
}

uint32_t reduce_blocks(uint64_t count, uint32_t processors) {
  const uint64_t blocks = (count + uint64_t{kGroup} * kWarps - 1) / (uint64_t{kGroup} * kWarps);
  return static_cast<uint32_t>(std::min<uint64_t>(blocks, uint64_t{processors} * kBlocksPerProcessor));
}

}  // namespace hvd_kernels
