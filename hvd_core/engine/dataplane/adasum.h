// Adasum: its Lowering, and its arithmetic on parts of two vectors in host memory: scalar products, and the weighted
// sum they determine.
//
// The arithmetic takes float16, bfloat16, float32 and float64. Scalar products are added up in double, in an order that
// depends only on the number of elements, so that all ranks get the same bits for the same sum. Weighted sums are
// computed in double (16-bit types: in float32) and rounded once. Pointers are aligned to their elements. Any thread.
#pragma once

#include <cstdint>

#include "engine/dataplane/host_math.h"
#include "engine/dataplane/lowering.h"
#include "engine/dataplane/schedule.h"

namespace hvd::dataplane {

// The scalar products of two vectors. The products of disjoint parts add up.
struct AdasumSums {
  double dot = 0, a_norm = 0, b_norm = 0;  // a.b, |a|^2, |b|^2

  AdasumSums& operator+=(const AdasumSums& o) {
    dot += o.dot;
    a_norm += o.a_norm;
    b_norm += o.b_norm;
    return *this;
  }
};

// Adasum(a, b) = weights.a * a + weights.b * b. The weight is 1 for a vector whose norm is too small to divide by.
struct AdasumWeights {
  explicit AdasumWeights(const AdasumSums& sums);
  double a, b;
};

bool adasum_serves(int32_t dtype);

AdasumSums adasum_sums(const HostMath& math, const void* a, const void* b, uint64_t n, int32_t dtype);

// dst[i] = weights.a * a[i] + weights.b * b[i]; dst may be a or b.
void adasum_combine(const HostMath& math, void* dst, const void* a, const void* b, uint64_t n, int32_t dtype,
                    AdasumWeights weights);

// Adasum: an allreduce that adds orthogonal parts of the ranks' gradients and averages parallel parts (Maleki et al.,
// "Scaling Distributed Training with Adaptive Summation", 2020).
//
// Two vectors combine as (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. The combination is not associative, so its order
// is part of the result. With p the largest power of two <= size: first rank p + i is combined into rank i (a = rank i,
// b = rank p + i), then neighbours among ranks 0 .. p - 1, then pairs of neighbours, and so on:
//   2 ranks (0 1)    3 ranks ((0 2) 1)    4 ranks ((0 1)(2 3))    5 ranks (((0 4) 1)(2 3))
// A vector of zeros changes nothing. Used by the driver.

// If all ranks' tensors together have at most this many bytes, every rank gathers all of them and computes the result
// alone: one collective instead of two for each doubling of ranks. The bits of the result are the same.
constexpr uint64_t kAdasumLocalBytes = 64 * 1024;

// A Lowering for an allreduce by Adasum in host memory (c.op is ignored). Each buffer is a tensor with scalar products
// of its own. The result has the same bits on all ranks. prescale is applied before, postscale after; 16-bit floats are
// rounded once per combination. `inner` must serve alltoall and allgather of any size. It and `math` must outlive the
// run of the schedule. Types other than float16, bfloat16, float32, float64: plugins::BackendError, UNSUPPORTED.
class AdasumLowering final : public Lowering {
 public:
  AdasumLowering(Lowering& inner, const HostMath& math, uint64_t local_bytes = kAdasumLocalBytes)
      : inner_(inner), math_(math), local_bytes_(local_bytes) {}

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

 private:
  Lowering& inner_;
  const HostMath& math_;
  const uint64_t local_bytes_;
};

}  // namespace hvd::dataplane
