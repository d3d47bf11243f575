// hvd_reduce: one array onto another, element by element. The work of one thread.
#pragma once

#include "memory.h"

namespace hvd_kernels {

// The groups that there are, and their number.
template <class E>
HVD_BOTH uint64_t reduce_groups(const ReduceArgs& args, uint32_t thread, uint32_t threads) {
  using Mem = typename E::Mem;
  using W = typename Combined<E>::Type;
  const uint32_t lane = thread % kLanes, warps = threads / kLanes;
  const uint32_t mask = group_alignment(sizeof(Mem)) - 1;
  const uint64_t groups = ((args.inout | args.in) & mask) == 0 ? args.count / kGroup : 0;
  for (uint64_t g = thread / kLanes; g < groups; g += warps) {
    const uint64_t at = g * kGroup * sizeof(Mem);
    Group<W> both, other;
    load_group<E>(both, args.inout + at, lane);
    load_group<E>(other, args.in + at, lane);
    HVD_UNROLL
    for (uint32_t r = 0; r < kRounds; ++r) {
      HVD_UNROLL
      for (uint32_t i = 0; i < kChunk; ++i) both.v[r][i] = combine<E>(args.op, both.v[r][i], other.v[r][i]);
    }
    store_group<E>(both, args.inout + at, lane);
  }
  return groups;
}

template <class E>
HVD_BOTH void reduce_elements(const ReduceArgs& args, uint32_t thread, uint32_t threads) {
  using Mem = typename E::Mem;
  using W = typename Combined<E>::Type;
  uint64_t groups = 0;
  if constexpr (kHasGroups<E>) groups = reduce_groups<E>(args, thread, threads);
  for (uint64_t i = groups * kGroup + thread; i < args.count; i += threads) {
    const uint64_t at = i * sizeof(Mem);
    const W a = wide<E, W>(read_anywhere<Mem>(args.inout + at)), b = wide<E, W>(read_anywhere<Mem>(args.in + at));
    write_anywhere(args.inout + at, stored<E>(combine<E>(args.op, a, b)));
  }
}

HVD_BOTH void reduce_thread(const ReduceArgs& args, uint32_t thread, uint32_t threads) {
  with_element<double>(args.dtype, [&](auto element) { reduce_elements<decltype(element)>(args, thread, threads); });
}

}  // namespace hvd_kernels
