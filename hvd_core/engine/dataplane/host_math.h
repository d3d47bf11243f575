// Neutral data of reductions, and arithmetic on host memory.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/plugins/backend.h"

namespace hvd::dataplane {

// Neutral data: the contribution of a rank that has joined, which does not change a reduction.

// Fills `data` with the identity of the reduction: 0 for sum and average, 1 for product, the largest value for min, the
// smallest for max (infinities for floating types).
void fill_neutral(void* data, uint64_t bytes, int32_t dtype, int32_t op);

// Arithmetic on host memory for the engine's own computations: local reductions, scaling, type conversion, averages.
//
// A backend's device table for "cpu" runs the loops (the embedded shm backend has one), so the engine has no kernels of
// its own. Const and without state: any thread.
class HostMath {
 public:
  // `cpu` must have a device table for "cpu" with local reductions. Throws plugins::BackendError if it does not.
  explicit HostMath(std::shared_ptr<plugins::Backend> cpu);
  ~HostMath();
  HostMath(const HostMath&) = delete;
  HostMath& operator=(const HostMath&) = delete;

  // inout[i] = inout[i] op in[i]; SUM, PROD, MIN, MAX. Throws plugins::BackendError for types without reductions.
  void reduce(void* inout, const void* in, uint64_t n, int32_t dtype, int32_t op) const;
  // dst[i] = src[i] * scale, as dst_dtype. Integers truncate toward zero. dst may be src if the types are equal.
  void convert(void* dst, int32_t dst_dtype, const void* src, int32_t src_dtype, uint64_t n, double scale = 1.0) const;
  // dst = the reduction of all `sources` (n elements each) in their order, by the rules of hvd_coll_args: prescale,
  // combine, divide for AVG, postscale; 16-bit floats are reduced in float32, averages of integers are exact. Factors
  // of 0 mean 1. dst may be one of the sources. The bits are those of the backend's kernels.
  void reduce_all(void* dst, const void* const* sources, uint32_t n_sources, uint64_t n, int32_t dtype, int32_t op,
                  double prescale, double postscale) const;
  // The first and the last step of a reduction that a collective carries out in the type `partial`, which holds every
  // value of `dtype`. dst = src as `partial`, times prescale: each product is a value of `dtype`.
  void load_partial(void* dst, int32_t partial, const void* src, int32_t dtype, uint64_t n, double prescale) const;
  // dst = partial sums / divisor * postscale, as `dtype`; integers wrap as a sum in their own type would.
  void store_result(void* dst, int32_t dtype, const void* sums, int32_t partial, uint64_t n, uint32_t divisor,
                    double postscale) const;
  // The last step of AVG: data[i] / divisor, exactly (not times a rounded reciprocal); integers truncate toward zero.
  void divide(void* data, uint64_t n, int32_t dtype, uint32_t divisor) const;

  // The type for partial results of a reduction in several steps, so that no step overflows or rounds more than a
  // single reduction would: int64 (uint64) for AVG of integers, float32 for 16-bit floats, else the type itself.
  static int32_t partial_dtype(int32_t dtype, int32_t op);

 private:
  std::shared_ptr<plugins::Backend> cpu_;
  hvd_device device_ = nullptr;
  hvd_stream stream_ = nullptr;
};

}  // namespace hvd::dataplane
