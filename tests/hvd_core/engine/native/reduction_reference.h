// What collectives are expected to give, computed plainly: data made from (seed, rank, buffer, index), and reductions
// of it in double or in 128-bit integers. For test programs in this folder; no state, any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/dtypes.h"
#include "hvd/backend_abi.h"

namespace reference {

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline bool is_float(int32_t t) {
  return t == HVD_FLOAT16 || t == HVD_BFLOAT16 || t == HVD_FLOAT32 || t == HVD_FLOAT64;
}

// n elements. For reductions, floats are of moderate size (no infinities, no NaN) and booleans are 0 or 1.
inline std::vector<char> data(uint64_t seed, uint64_t rank, uint64_t buffer, uint64_t n, int32_t dtype, bool reduces) {
  const uint64_t width = hvd::base::dtype_bytes(dtype), key = mix(seed * 1000003 + rank * 1009 + buffer);
  std::vector<char> bytes(n * width + sizeof(uint64_t));  // each element is written as 8 bytes, the next one over it
  for (uint64_t i = 0; i < n; ++i) {
    uint64_t bits = mix(key + i * 0x9e3779b97f4a7c15u);
    if (reduces && dtype == HVD_BOOL) bits &= 1;
    if (reduces && is_float(dtype)) {
      const uint64_t sign = bits >> 63, exponent = (bits >> 60) & 1, low = bits & 0xfffffffffffff;
      if (dtype == HVD_FLOAT16) bits = sign << 15 | (14 + exponent) << 10 | (low & 0x3ff);
      if (dtype == HVD_BFLOAT16) bits = sign << 15 | (126 + exponent) << 7 | (low & 0x7f);
      if (dtype == HVD_FLOAT32) bits = sign << 31 | (126 + exponent) << 23 | (low & 0x7fffff);
      if (dtype == HVD_FLOAT64) bits = sign << 63 | (1022 + exponent) << 52 | low;
    }
    std::memcpy(bytes.data() + i * width, &bits, sizeof bits);
  }
  bytes.resize(n * width);
  return bytes;
}

template <class T>
T load(const char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline double as_double(const char* p, int32_t dtype) {
  if (dtype == HVD_FLOAT32) return load<float>(p);
  if (dtype == HVD_FLOAT64) return load<double>(p);
  const uint16_t h = load<uint16_t>(p);
  if (dtype == HVD_BFLOAT16) {
    const uint32_t wide = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &wide, sizeof f);
    return f;
  }
  const int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
  constexpr double kSmallest = 0x1p-24;
  double v = exponent == 0 ? mantissa * kSmallest : (mantissa + 1024) * (kSmallest * (1u << (exponent - 1)));
  if (exponent == 31) v = mantissa ? NAN : INFINITY;
  return h & 0x8000 ? -v : v;
}

// The functions below compare `n` reduced elements with the ranks' elements at `from` (one pointer per rank). They give
// the index of the first wrong element, or n.

// One rounding of the sum per level is allowed.
template <int32_t dtype>
uint64_t first_wrong_float(const char* got, const std::vector<const char*>& from, uint64_t n, int32_t op, double pre,
                           double post) {
  constexpr uint64_t kWidth = dtype == HVD_FLOAT64 ? 8 : dtype == HVD_FLOAT32 ? 4 : 2;
  constexpr double kUnit = dtype == HVD_FLOAT64   ? 0x1p-53
                           : dtype == HVD_FLOAT32 ? 0x1p-24
                           : dtype == HVD_FLOAT16 ? 0x1p-11
                                                  : 0x1p-8;
  const double divisor = op == HVD_AVG ? static_cast<double>(from.size()) : 1.0;
  const double roundings = 3.0 + static_cast<double>(from.size());
  for (uint64_t i = 0; i < n; ++i) {
    double value = 0, size = 0;
    for (size_t r = 0; r < from.size(); ++r) {
      const double v = as_double(from[r] + i * kWidth, dtype) * pre;
      size += std::abs(v);
      if (r == 0)
        value = v;
      else if (op == HVD_SUM || op == HVD_AVG)
        value += v;
      else if (op == HVD_PROD)
        value *= v;
      else
        value = (op == HVD_MIN) == (v < value) ? v : value;
    }
    const double scale = op == HVD_PROD ? std::abs(value) : size;
    const double off = std::abs(as_double(got + i * kWidth, dtype) - value / divisor * post);
    const double allowed = roundings * kUnit * scale / divisor * post + (dtype == HVD_FLOAT16 ? 0x1p-23 : 0.0);
    if (!(off <= allowed)) return i;
  }
  return n;
}

template <class T>
T scaled(T v, double factor) {
  if (factor == 1.0) return v;
  const double x = std::trunc(static_cast<double>(v) * factor);
  if (x <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (x >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(x);
}

// Integers are exact: sums and products wrap as the type does, averages do not.
template <class T>
uint64_t first_wrong_integer(const char* got, const std::vector<const char*>& from, uint64_t n, int32_t op, double pre,
                             double post) {
  for (uint64_t i = 0; i < n; ++i) {
    T value = 0;
    __int128 sum = 0;
    unsigned __int128 product = 1;
    for (size_t r = 0; r < from.size(); ++r) {
      const T v = scaled(load<T>(from[r] + i * sizeof(T)), pre);
      sum += v;
      product *= static_cast<unsigned __int128>(static_cast<__int128>(v));
      if (r == 0 || (op == HVD_MIN ? v < value : v > value)) value = v;
    }
    if (op == HVD_SUM) value = static_cast<T>(sum);
    if (op == HVD_PROD) value = static_cast<T>(product);
    if (op == HVD_AVG) value = static_cast<T>(sum / static_cast<__int128>(from.size()));
    if (load<T>(got + i * sizeof(T)) != scaled(value, post)) return i;
  }
  return n;
}

inline uint64_t first_wrong_boolean(const char* got, const std::vector<const char*>& from, uint64_t n, int32_t op) {
  for (uint64_t i = 0; i < n; ++i) {
    bool any = false, all = true;
    for (const char* p : from) any = any || p[i], all = all && p[i];
    if (got[i] != static_cast<char>(op == HVD_SUM || op == HVD_MAX ? any : all)) return i;
  }
  return n;
}

inline uint64_t first_wrong(const char* got, const std::vector<const char*>& from, uint64_t n, int32_t dtype,
                            int32_t op, double pre, double post) {
  switch (dtype) {
    case HVD_FLOAT16:
      return first_wrong_float<HVD_FLOAT16>(got, from, n, op, pre, post);
    case HVD_BFLOAT16:
      return first_wrong_float<HVD_BFLOAT16>(got, from, n, op, pre, post);
    case HVD_FLOAT32:
      return first_wrong_float<HVD_FLOAT32>(got, from, n, op, pre, post);
    case HVD_FLOAT64:
      return first_wrong_float<HVD_FLOAT64>(got, from, n, op, pre, post);
    case HVD_UINT8:
      return first_wrong_integer<uint8_t>(got, from, n, op, pre, post);
    case HVD_INT8:
      return first_wrong_integer<int8_t>(got, from, n, op, pre, post);
    case HVD_UINT16:
      return first_wrong_integer<uint16_t>(got, from, n, op, pre, post);
    case HVD_INT16:
      return first_wrong_integer<int16_t>(got, from, n, op, pre, post);
    case HVD_UINT32:
      return first_wrong_integer<uint32_t>(got, from, n, op, pre, post);
    case HVD_INT32:
      return first_wrong_integer<int32_t>(got, from, n, op, pre, post);
    case HVD_UINT64:
      return first_wrong_integer<uint64_t>(got, from, n, op, pre, post);
    case HVD_INT64:
      return first_wrong_integer<int64_t>(got, from, n, op, pre, post);
    default:
      return first_wrong_boolean(got, from, n, op);
  }
}

}  // namespace reference
