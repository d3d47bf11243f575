// The arithmetic of Adasum on parts of two vectors in host memory: scalar products, and the weighted sum they
// determine.
//
// float16, bfloat16, float32 and float64. Scalar products are added up in double, in an order that depends only on the
// number of elements, so that all ranks get the same bits for the same sum. Weighted sums are computed in double
// (16-bit types: in float32) and rounded once. Pointers are aligned to their elements. Any thread.
#pragma once

#include <cstdint>

#include "engine/data/host_math.h"

namespace hvd::data {

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

}  // namespace hvd::data
