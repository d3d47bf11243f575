// See adasum_math.h.
#include "engine/data/adasum_math.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "hvd/backend_abi.h"

namespace hvd::data {

namespace {

// 16-bit elements per conversion: their float32 copies stay in the first-level cache.
constexpr uint64_t kTile = 1024;

// Element i goes to lane i % kLanes. Fixed lanes let the compiler use vectors of any width without a change of order.
constexpr uint64_t kLanes = 8;
static_assert(kTile % kLanes == 0);

struct Lanes {
  double dot[kLanes] = {}, a[kLanes] = {}, b[kLanes] = {};

  template <class T>
  void add(const T* x, const T* y, uint64_t n) {
    uint64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (uint64_t k = 0; k < kLanes; ++k) add_one(k, x[i + k], y[i + k]);
    for (uint64_t k = 0; i + k < n; ++k) add_one(k, x[i + k], y[i + k]);
  }

  void add_one(uint64_t k, double x, double y) {
    dot[k] += x * y;
    a[k] += x * x;
    b[k] += y * y;
  }

  static double total(const double* v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

  AdasumSums sums() const { return {total(dot), total(a), total(b)}; }
};

template <class T>
AdasumSums sums_of(const void* a, const void* b, uint64_t n) {
  Lanes lanes;
  lanes.add(static_cast<const T*>(a), static_cast<const T*>(b), n);
  return lanes.sums();
}

template <class T, class Wide>
void combine(void* dst, const void* a, const void* b, uint64_t n, AdasumWeights w) {
  auto* to = static_cast<T*>(dst);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  const auto wa = static_cast<Wide>(w.a), wb = static_cast<Wide>(w.b);
  for (uint64_t i = 0; i < n; ++i) to[i] = static_cast<T>(wa * static_cast<Wide>(x[i]) + wb * static_cast<Wide>(y[i]));
}

// Calls body(a's tile, b's tile, first element, elements) with 16-bit floats as float32.
template <class F>
void by_tiles(const HostMath& math, const void* a, const void* b, uint64_t n, int32_t dtype, F&& body) {
  alignas(64) float x[kTile], y[kTile];
  const auto *from_a = static_cast<const uint16_t*>(a), *from_b = static_cast<const uint16_t*>(b);
  for (uint64_t at = 0; at < n; at += kTile) {
    const uint64_t some = std::min(kTile, n - at);
    math.convert(x, HVD_FLOAT32, from_a + at, dtype, some);
    math.convert(y, HVD_FLOAT32, from_b + at, dtype, some);
    body(x, y, at, some);
  }
}

double weight(double dot, double norm) {
  static const double kTiny = std::sqrt(DBL_MIN);
  return norm < kTiny ? 1.0 : 1.0 - dot / (2.0 * norm);
}

}  // namespace

AdasumWeights::AdasumWeights(const AdasumSums& sums)
    : a(weight(sums.dot, sums.a_norm)), b(weight(sums.dot, sums.b_norm)) {}

bool adasum_serves(int32_t dtype) {
  return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64;
}

AdasumSums adasum_sums(const HostMath& math, const void* a, const void* b, uint64_t n, int32_t dtype) {
  if (dtype == HVD_FLOAT32) return sums_of<float>(a, b, n);
  if (dtype == HVD_FLOAT64) return sums_of<double>(a, b, n);
  Lanes lanes;
  by_tiles(math, a, b, n, dtype, [&](float* x, float* y, uint64_t, uint64_t some) { lanes.add(x, y, some); });
  return lanes.sums();
}

void adasum_combine(const HostMath& math, void* dst, const void* a, const void* b, uint64_t n, int32_t dtype,
                    AdasumWeights weights) {
  if (dtype == HVD_FLOAT32) return combine<float, double>(dst, a, b, n, weights);
  if (dtype == HVD_FLOAT64) return combine<double, double>(dst, a, b, n, weights);
  by_tiles(math, a, b, n, dtype, [&](float* x, float* y, uint64_t at, uint64_t some) {
    combine<float, float>(x, x, y, some, weights);
    math.convert(static_cast<uint16_t*>(dst) + at, dtype, x, HVD_FLOAT32, some);
  });
}

}  // namespace hvd::data
