// Arithmetic on elements in host memory, for backends whose library has user-defined reductions.
//
// Header-only, C++17, pure functions of any thread. Nothing need be aligned. 16 and 8 bit floats are computed in float
// and rounded once, to nearest even; a NaN in either operand makes MIN and MAX NaN; sums and products of integers wrap;
// on bool SUM and MAX are "or", PROD and MIN "and", with results 0 and 1. Compile with -O3: at -O2 gcc does not
// vectorise loops of unknown length. On x86 each loop is compiled twice and chosen by the processor at run time; a
// processor with F16C converts float16 itself.
#ifndef HVD_BACKEND_REDUCE_HPP_
#define HVD_BACKEND_REDUCE_HPP_

#include <cstdint>
#include <cstring>
#include <string>

#include "hvd/backend.hpp"
#include "hvd/backend_elements.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#pragma GCC visibility push(hidden)
namespace hvd {
namespace arithmetic {

// `ivdep`: out may be one of the operands, element for element. The vectoriser's overlap test would take the slow loop
// then.
template <class E, int op>
struct Combine {
  static inline __attribute__((always_inline)) void run(void* out, const void* a, const void* b, uint64_t n, double) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) store<E>(out, i, combine<E, op>(load<E>(a, i), load<E>(b, i)));
  }
};
template <class E>
struct Scale {
  static inline __attribute__((always_inline)) void run(void* out, const void* a, const void*, uint64_t n,
                                                        double factor) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) store<E>(out, i, scaled<E>(load<E>(a, i), factor));
  }
};
template <class E>
struct Divide {
  static inline __attribute__((always_inline)) void run(void* out, const void* a, const void*, uint64_t n,
                                                        double divisor) {
    const auto d = static_cast<typename E::Acc>(divisor);
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) store<E>(out, i, load<E>(a, i) / d);
  }
};

#if defined(__x86_64__) && defined(__GNUC__)
template <class Loop>
[[gnu::target("avx2")]] void run_avx2(void* out, const void* a, const void* b, uint64_t n, double factor) {
  Loop::run(out, a, b, n, factor);
}

// float16 by the processor's conversions, several times as fast as arithmetic.
template <int op>
[[gnu::target("avx2,f16c")]] void combine_halves(void* out, const void* a, const void* b, uint64_t n) {
  const auto at = [](const void* p, uint64_t i) { return static_cast<const char*>(p) + 2 * i; };
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at(a, i))));
    const __m256 y = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at(b, i))));
    __m256 v;
    if constexpr (op == HVD_SUM) {
      v = _mm256_add_ps(x, y);
    } else if constexpr (op == HVD_PROD) {
      v = _mm256_mul_ps(x, y);
    } else {
      const __m256 nan = _mm256_cmp_ps(y, y, _CMP_UNORD_Q);
      const __m256 first = op == HVD_MIN ? _mm256_cmp_ps(y, x, _CMP_LT_OQ) : _mm256_cmp_ps(y, x, _CMP_GT_OQ);
      v = _mm256_blendv_ps(x, y, _mm256_or_ps(first, nan));
    }
    const __m128i halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<char*>(out) + 2 * i), halves);
  }
  Combine<Float16, op>::run(static_cast<char*>(out) + 2 * i, at(a, i), at(b, i), n - i, 1);
}
#endif

template <class Loop>
inline constexpr int kHalvesOp = -1;
template <int op>
inline constexpr int kHalvesOp<Combine<Float16, op>> = op;

template <class Loop>
void run(void* out, const void* a, const void* b, uint64_t n, double factor) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if constexpr (kHalvesOp<Loop> >= 0) {
    static const bool f16c = __builtin_cpu_supports("f16c") != 0;
    if (avx2 && f16c) return combine_halves<kHalvesOp<Loop>>(out, a, b, n);
  }
  if (avx2) return run_avx2<Loop>(out, a, b, n, factor);
#endif
  Loop::run(out, a, b, n, factor);
}

}  // namespace arithmetic

// out[i] = a[i] op b[i]; `out` may be one of the operands. SUM, PROD, MIN, MAX of every type. For an
// average, the caller sums and divides. Throws HVD_E_UNSUPPORTED for another reduction or type.
inline void combine_elements(int32_t dtype, int32_t op, void* out, const void* a, const void* b, uint64_t n) {
  bool known = false;
  arithmetic::with_element(dtype, [&](auto element) {
    using E = decltype(element);
    known = true;
    switch (op) {
      case HVD_SUM:
        return arithmetic::run<arithmetic::Combine<E, HVD_SUM>>(out, a, b, n, 1);
      case HVD_PROD:
        return arithmetic::run<arithmetic::Combine<E, HVD_PROD>>(out, a, b, n, 1);
      case HVD_MIN:
        return arithmetic::run<arithmetic::Combine<E, HVD_MIN>>(out, a, b, n, 1);
      case HVD_MAX:
        return arithmetic::run<arithmetic::Combine<E, HVD_MAX>>(out, a, b, n, 1);
      default:
        known = false;
    }
  });
  if (!known) {
    throw Error(HVD_E_UNSUPPORTED,
                "no arithmetic for reduction " + std::to_string(op) + " on element type " + std::to_string(dtype));
  }
}

// inout[i] = inout[i] op in[i].
inline void reduce_elements(int32_t dtype, int32_t op, void* inout, const void* in, uint64_t n) {
  combine_elements(dtype, op, inout, inout, in, n);
}

// Whether elements of this type are floating-point numbers; false for an unknown type.
inline bool is_floating(int32_t dtype) {
  bool floating = false;
  arithmetic::with_element(dtype, [&](auto element) { floating = decltype(element)::kFloat; });
  return floating;
}

// data[i] /= divisor, the end of an average of floats: rounded once, where a factor of 1 / divisor is rounded itself.
// Throws HVD_E_UNSUPPORTED for a type that is not floating: an average of integers divides the exact sum.
inline void divide_elements(int32_t dtype, void* data, uint64_t n, uint32_t divisor) {
  bool known = false;
  arithmetic::with_element(dtype, [&](auto element) {
    using E = decltype(element);
    if constexpr (E::kFloat) {
      known = true;
      arithmetic::run<arithmetic::Divide<E>>(data, data, nullptr, n, divisor);
    }
  });
  if (!known) throw Error(HVD_E_UNSUPPORTED, "no division for element type " + std::to_string(dtype));
}

// data[i] *= factor, by the rules of prescale and postscale. Throws HVD_E_UNSUPPORTED for an unknown type.
inline void scale_elements(int32_t dtype, void* data, uint64_t n, double factor) {
  const bool known = arithmetic::with_element(dtype, [&](auto element) {
    arithmetic::run<arithmetic::Scale<decltype(element)>>(data, data, nullptr, n, factor);
  });
  if (!known) throw Error(HVD_E_UNSUPPORTED, "no arithmetic for element type " + std::to_string(dtype));
}

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_REDUCE_HPP_
