// Adasum: an allreduce that adds orthogonal parts of the ranks' gradients and averages parallel parts (Maleki et al.,
// "Scaling Distributed Training with Adaptive Summation", 2020).
//
// Two vectors combine as (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. The combination is not associative, so its order
// is part of the result. With p the largest power of two <= size: first rank p + i is combined into rank i (a = rank i,
// b = rank p + i), then neighbours among ranks 0 .. p - 1, then pairs of neighbours, and so on:
//   2 ranks (0 1)    3 ranks ((0 2) 1)    4 ranks ((0 1)(2 3))    5 ranks (((0 4) 1)(2 3))
// A vector of zeros changes nothing. Used by the driver.
#pragma once

#include <cstdint>

#include "engine/data/host_math.h"
#include "engine/data/schedule.h"
#include "engine/data/transport.h"

namespace hvd::data {

// If all ranks' tensors together have at most this many bytes, every rank gathers all of them and computes the result
// alone: one collective instead of two for each doubling of ranks. The bits of the result are the same.
constexpr uint64_t kAdasumLocalBytes = 64 * 1024;

// Appends the steps of an allreduce `c` by Adasum (c.op is ignored). Each buffer, in host memory, is a tensor with
// scalar products of its own. The result has the same bits on all ranks. prescale is applied before, postscale after;
// 16-bit floats are rounded once per combination. The transport must serve alltoall and allgather of any size. The
// transport and `math` must outlive the run of the schedule. Throws plugin::BackendError, UNSUPPORTED, for types other
// than float16, bfloat16, float32, float64.
void write_adasum(Schedule& schedule, Transport& transport, const HostMath& math, const plugin::Collective& c,
                  uint64_t local_bytes = kAdasumLocalBytes);

}  // namespace hvd::data
