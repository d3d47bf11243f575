// Conversion between element types; see convert.h.
#include "convert.h"

#include <cstring>
#include <limits>

#include "hvd/backend_elements.hpp"
#include "kernels.h"
#include "support.h"

namespace hvd::host_kernels {
namespace {

constexpr uint64_t kTile = 256;

bool is_integer(int32_t t) { return (t >= HVD_UINT8 && t <= HVD_INT64) || t == HVD_UINT32 || t == HVD_UINT64; }
bool is_half(int32_t t) { return t == HVD_FLOAT16 || t == HVD_BFLOAT16; }
const HalfKernels& half_kernels(int32_t t) { return t == HVD_FLOAT16 ? kernels().float16 : kernels().bfloat16; }
bool is_float8(int32_t t) { return t == HVD_FLOAT8_E4M3FN || t == HVD_FLOAT8_E5M2; }

template <class T>
T from_double(double v) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double kHigh = static_cast<double>(std::numeric_limits<T>::max());
    if (v != v) return T{0};
    if (v <= kLow) return std::numeric_limits<T>::min();
    if (v >= kHigh) return std::numeric_limits<T>::max();
  }
  return static_cast<T>(v);
}

template <class Tile>
void load_tile(Tile* to, const char* from, int32_t dtype, uint64_t n) {
  arithmetic::with_element(dtype, [&](auto element) {
    for (uint64_t i = 0; i < n; ++i) to[i] = static_cast<Tile>(arithmetic::load<decltype(element)>(from, i));
  });
}

template <class Tile>
void store_tile(char* to, const Tile* from, int32_t dtype, uint64_t n) {
  arithmetic::with_element(dtype, [&](auto element) {
    using E = decltype(element);
    using Acc = typename E::Acc;
    for (uint64_t i = 0; i < n; ++i) {
      if constexpr (E::kBool) {
        arithmetic::store<E>(to, i, from[i] != Tile{0});
      } else if constexpr (std::numeric_limits<Tile>::is_integer) {
        arithmetic::store<E>(to, i, static_cast<Acc>(from[i]));
      } else {
        arithmetic::store<E>(to, i, from_double<Acc>(from[i]));
      }
    }
  });
}

}  // namespace

bool convert(void* dst, int32_t dst_dtype, const void* src, int32_t src_dtype, uint64_t count, double scale) {
  if (src_dtype == dst_dtype && scale == 1.0) {
    std::memmove(dst, src, count * dtype_size(src_dtype));
    return true;
  }
  if (is_float8(src_dtype) || is_float8(dst_dtype)) return false;
  if (src_dtype == dst_dtype) {
    Scale s;
    s.pre = scale;
    kernels().reduce[src_dtype][HVD_SUM](dst, &src, 1, count, s);
    return true;
  }
  if (scale == 1.0 && is_half(src_dtype) && dst_dtype == HVD_FLOAT32) {
    half_kernels(src_dtype).widen(dst, src, count);
    return true;
  }
  if (scale == 1.0 && src_dtype == HVD_FLOAT32 && is_half(dst_dtype)) {
    half_kernels(dst_dtype).narrow(dst, src, count);
    return true;
  }
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(dst);
  const uint64_t in = dtype_size(src_dtype), out = dtype_size(dst_dtype);
  const bool exact = scale == 1.0 && is_integer(src_dtype) && (is_integer(dst_dtype) || dst_dtype == HVD_BOOL);
  for (uint64_t at = 0; at < count; at += kTile) {
    const uint64_t n = count - at < kTile ? count - at : kTile;
    if (exact) {
      int64_t tile[kTile];
      load_tile(tile, from + at * in, src_dtype, n);
      store_tile(to + at * out, tile, dst_dtype, n);
    } else {
      double tile[kTile];
      load_tile(tile, from + at * in, src_dtype, n);
      for (uint64_t i = 0; i < n; ++i) tile[i] *= scale;
      store_tile(to + at * out, tile, dst_dtype, n);
    }
  }
  return true;
}

}  // namespace hvd::host_kernels
