// hvd_copy_scale: copies of a batch in one launch, each with its own types and factor. The work of one thread.
#pragma once

#include "memory.h"

namespace hvd_kernels {

// ---------------------------------------------------------------------------------------------------- bits as they are

// Units are read this many at a time, so that reads are always in flight.
template <uint32_t bytes>
constexpr uint32_t kInFlight = bytes == 16 ? 4 : 8;

// Bytes [begin, end) of an item; both lie a multiple of the unit away from an aligned address.
template <uint32_t bytes>
HVD_BOTH void copy_units(uint64_t dst, uint64_t src, uint32_t begin, uint32_t end, uint32_t lane) {
  using Unit = typename Word<bytes>::Type;
  constexpr uint32_t kRound = kLanes * bytes, kStep = kRound * kInFlight<bytes>;
  uint32_t at = begin;
  for (; at + kStep <= end; at += kStep) {
    Unit units[kInFlight<bytes>];
    HVD_UNROLL
    for (uint32_t r = 0; r < kInFlight<bytes>; ++r) units[r] = read<Unit>(src + at + r * kRound + lane * bytes);
    HVD_UNROLL
    for (uint32_t r = 0; r < kInFlight<bytes>; ++r) write(dst + at + r * kRound + lane * bytes, units[r]);
  }
  for (at += lane * bytes; at + bytes <= end; at += kRound) write(dst + at, read<Unit>(src + at));
}

HVD_BOTH void copy_bytes(uint64_t dst, uint64_t src, uint32_t begin, uint32_t end, uint32_t lane) {
  for (uint32_t at = begin + lane; at < end; at += kLanes) write(dst + at, read<uint8_t>(src + at));
}

// The tile-th part of an item of `count` bytes.
HVD_BOTH void copy_raw(const CopyItem& item, uint32_t tile, uint32_t tile_bytes, uint32_t lane) {
  // The widest unit in which both sides are equally far from a multiple.
  const uint32_t apart = static_cast<uint32_t>(item.dst - item.src) & 15u;
  const uint32_t unit = apart == 0 ? 16u : apart & (0u - apart);
  const uint32_t head = static_cast<uint32_t>(0 - item.dst) & (unit - 1);  // bytes before the first whole unit
  uint32_t begin = head + tile * tile_bytes;
  uint32_t end = begin + tile_bytes;
  if (begin > item.count) begin = item.count;
  if (end > item.count) end = item.count;
  if (tile == 0) copy_bytes(item.dst, item.src, 0, begin, lane);
  const uint32_t whole = begin + (end - begin) / unit * unit;
  if (unit == 16) {
    copy_units<16>(item.dst, item.src, begin, whole, lane);
  } else if (unit == 8) {
    copy_units<8>(item.dst, item.src, begin, whole, lane);
  } else if (unit == 4) {
    copy_units<4>(item.dst, item.src, begin, whole, lane);
  } else if (unit == 2) {
    copy_units<2>(item.dst, item.src, begin, whole, lane);
  } else {
    copy_units<1>(item.dst, item.src, begin, whole, lane);
  }
  copy_bytes(item.dst, item.src, whole, end, lane);
}

// ------------------------------------------------------------------------------------------- elements by way of a W

// How many elements at an item's beginning stand before addresses that groups can have, on both sides at once; as many
// as there are if that never happens.
HVD_BOTH uint32_t before_groups(const CopyItem& item, uint32_t src_bytes, uint32_t dst_bytes) {
  const uint32_t src_mask = group_alignment(src_bytes) - 1, dst_mask = group_alignment(dst_bytes) - 1;
  for (uint32_t n = 0; n < kChunk; ++n) {
    const uint64_t src = item.src + n * src_bytes, dst = item.dst + n * dst_bytes;
    if ((src & src_mask) == 0 && (dst & dst_mask) == 0) return n;
  }
  return item.count;
}

template <class W>
HVD_BOTH void copy_groups(const CopyKind& kind, uint64_t dst, uint64_t src, uint32_t groups, uint32_t lane) {
  const uint32_t src_step = bytes_of(kind.src_dtype) * kGroup, dst_step = bytes_of(kind.dst_dtype) * kGroup;
  const W factor = static_cast<W>(kind.scale);
  for (uint32_t g = 0; g < groups; ++g, src += src_step, dst += dst_step) {
    Group<W> group;
    load_group(group, kind.src_dtype, src, lane);
    HVD_UNROLL
    for (uint32_t r = 0; r < kRounds; ++r) {
      HVD_UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) group.v[r][i] *= factor;
    }
    store_group(group, kind.dst_dtype, dst, lane);
  }
}

template <class W>
HVD_BOTH void copy_one(const CopyKind& kind, uint64_t dst, uint64_t src) {
  store_one(kind.dst_dtype, dst, load_one<W>(kind.src_dtype, src) * static_cast<W>(kind.scale));
}

// The tile-th part of an item of `count` elements. Conversions between integers are rare and go one by one; their
// factor is 1.
HVD_BOTH void copy_elements(const CopyKind& kind, const CopyItem& item, uint32_t tile, uint32_t tile_bytes,
                            uint32_t lane) {
  const uint32_t src_bytes = bytes_of(kind.src_dtype), dst_bytes = bytes_of(kind.dst_dtype);
  const uint32_t tile_elements = tile_bytes / (src_bytes > dst_bytes ? src_bytes : dst_bytes);
  uint32_t head = before_groups(item, src_bytes, dst_bytes);
  const bool grouped = kind.path == kFloat || (kind.path == kDouble && has_groups<double>(kind.src_dtype) &&
                                               has_groups<double>(kind.dst_dtype));
  const bool groups = grouped && head < item.count;
  if (!groups) head = 0;
  uint32_t begin = head + tile * tile_elements;
  uint32_t end = begin + tile_elements;
  if (begin > item.count) begin = item.count;
  if (end > item.count) end = item.count;
  const uint32_t n_groups = groups ? (end - begin) / kGroup : 0;
  const uint64_t first_src = item.src + uint64_t{begin} * src_bytes, first_dst = item.dst + uint64_t{begin} * dst_bytes;
  if (kind.path == kFloat) {
    copy_groups<float>(kind, first_dst, first_src, n_groups, lane);
  } else {
    copy_groups<double>(kind, first_dst, first_src, n_groups, lane);
  }
  // The elements before all groups come with the first tile; those behind the last group of this one.
  const uint32_t before = tile == 0 ? head : 0, behind = begin + n_groups * kGroup;
  for (uint32_t n = lane; n < before + (end - behind); n += kLanes) {
    const uint32_t at = n < before ? n : behind + (n - before);
    const uint64_t src = item.src + uint64_t{at} * src_bytes, dst = item.dst + uint64_t{at} * dst_bytes;
    if (kind.path == kFloat) {
      copy_one<float>(kind, dst, src);
    } else if (kind.path == kDouble) {
      copy_one<double>(kind, dst, src);
    } else {
      copy_one<int64_t>(kind, dst, src);
    }
  }
}

// ------------------------------------------------------------------------------------------------------------- a batch

// Kinds and items, from the parameters or from the device's memory. (Not by way of global(): nvcc 13.0 does not come to
// an end of compiling that.)
HVD_BOTH CopyKind kind_of(const CopyArgs& args, uint32_t i) {
  return args.table == 0 ? args.kinds[i] : reinterpret_cast<const CopyKind*>(args.table)[i];
}
HVD_BOTH CopyItem item_of(const CopyArgs& args, uint32_t i) {
  if (args.table == 0) return args.items[i];
  return reinterpret_cast<const CopyItem*>(args.table + args.n_kinds * sizeof(CopyKind))[i];
}

// Index of the item that the tile belongs to; it is not before `low`.
HVD_BOTH uint32_t item_with(const CopyArgs& args, uint32_t tile, uint32_t low) {
  uint32_t high = args.n_items - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (item_of(args, middle).tiles_end > tile) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

HVD_BOTH void copy_scale_thread(const CopyArgs& args, uint32_t thread, uint32_t threads) {
  const uint32_t lane = thread % kLanes, warps = threads / kLanes;
  uint32_t i = 0;
  for (uint32_t tile = thread / kLanes; tile < args.tiles; tile += warps) {
    i = item_with(args, tile, i);
    const CopyItem item = item_of(args, i);
    const uint32_t first = i == 0 ? 0 : item_of(args, i - 1).tiles_end;
    uint32_t k = 0;
    while (kind_of(args, k).items_end <= i) ++k;
    const CopyKind kind = kind_of(args, k);
    if (kind.path == kRaw) {
      copy_raw(item, tile - first, args.tile_bytes, lane);
    } else {
      copy_elements(kind, item, tile - first, args.tile_bytes, lane);
    }
  }
}

}  // namespace hvd_kernels
