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

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#pragma GCC visibility push(hidden)
namespace hvd {
namespace arithmetic {

#define HVD_INLINE inline __attribute__((always_inline))

template <class To, class From>
HVD_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits under another type");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// first ? a : b, by masks. gcc compiles ?: to a branch and moves operations into it; a loop with a branch around an
// addition of floats does not vectorise.
HVD_INLINE uint32_t pick(bool first, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(first);
  return (a & mask) | (b & ~mask);
}

constexpr float power_of_two(int exponent) {
  float value = 1;
  for (int i = 0; i < exponent; ++i) value *= 2;
  for (int i = 0; i > exponent; --i) value /= 2;
  return value;
}

// ----------------------------------------------------------------------------------------------- element types
// Mem: the type in memory. Acc: the type of the computation.

template <class T, bool float_>
struct Plain {
  using Mem = T;
  using Acc = T;
  static constexpr bool kFloat = float_, kBool = false;
  static HVD_INLINE Acc widen(Mem v) { return v; }
  static HVD_INLINE Mem narrow(Acc v) { return v; }
};

struct Bool {
  using Mem = uint8_t;
  using Acc = uint8_t;
  static constexpr bool kFloat = false, kBool = true;
  static HVD_INLINE Acc widen(Mem v) { return v != 0; }
  static HVD_INLINE Mem narrow(Acc v) { return v; }
};

struct Bfloat16 {
  using Mem = uint16_t;
  using Acc = float;
  static constexpr bool kFloat = true, kBool = false;
  static HVD_INLINE Acc widen(Mem v) { return bits_as<float>(static_cast<uint32_t>(v) << 16); }
  static HVD_INLINE Mem narrow(Acc v) {
    const uint32_t bits = bits_as<uint32_t>(v);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return static_cast<Mem>(pick((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded));
  }
};

// A float with fewer bits of exponent than float has: one sign bit, then exponent, then `fraction` bits. With
// `infinite` its top exponent holds infinity and NaN, as in IEEE; without it, only the number of all ones is NaN.
template <class M, int fraction, int bias, bool infinite>
struct SmallFloat {
  using Mem = M;
  using Acc = float;
  static constexpr bool kFloat = true, kBool = false;
  static constexpr int kBits = static_cast<int>(sizeof(M)) * 8, kShift = 23 - fraction;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kInfinity = kMagnitude & ~((1u << fraction) - 1u);
  // The smallest number that is not finite; larger numbers become it.
  static constexpr uint32_t kTop = infinite ? kInfinity : kMagnitude;
  static constexpr uint32_t kNan = infinite ? kInfinity | (1u << (fraction - 1)) : kMagnitude;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - bias) << 23;

  static HVD_INLINE Acc widen(Mem v) {
    const uint32_t sign = static_cast<uint32_t>(v & (kMagnitude + 1)) << (32 - kBits);
    const uint32_t rest = v & kMagnitude;
    const uint32_t normal = (rest << kShift) + kRebias;
    const uint32_t special = pick(infinite && rest == kInfinity, 0x7f800000u, 0x7fc00000u | (rest << kShift));
    const uint32_t tiny =
        bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(rest)) * power_of_two(1 - bias - fraction));
    return bits_as<float>(pick(rest >= kTop, special, pick(rest < (1u << fraction), tiny, normal)) | sign);
  }
  static HVD_INLINE Mem narrow(Acc v) {
    const uint32_t bits = bits_as<uint32_t>(v), rest = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> (32 - kBits)) & (kMagnitude + 1);
    const uint32_t normal = (rest + (1u << (kShift - 1)) - 1u + ((rest >> kShift) & 1u) - kRebias) >> kShift;
    // The addition of this number rounds a subnormal result to the multiple that the type has.
    constexpr float kAlign = power_of_two(24 - bias - fraction);
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(rest) + kAlign) - bits_as<uint32_t>(kAlign);
    const uint32_t number = pick(rest < kRebias + (1u << 23), tiny, pick(normal < kTop, normal, kTop));
    return static_cast<Mem>(pick(rest > 0x7f800000u, kNan, number) | sign);
  }
};
using Float16 = SmallFloat<uint16_t, 10, 15, true>;
using Float8E4M3fn = SmallFloat<uint8_t, 3, 7, false>;
using Float8E5M2 = SmallFloat<uint8_t, 2, 15, true>;

// ------------------------------------------------------------------------------------------------- on one element

template <class E, int op>
HVD_INLINE typename E::Acc combine(typename E::Acc a, typename E::Acc b) {
  using Acc = typename E::Acc;
  if constexpr (E::kBool) {
    return static_cast<Acc>(op == HVD_SUM || op == HVD_MAX ? a | b : a & b);
  } else if constexpr (op == HVD_MIN) {
    if constexpr (E::kFloat) return ((b < a) | (b != b)) ? b : a;
    return b < a ? b : a;
  } else if constexpr (op == HVD_MAX) {
    if constexpr (E::kFloat) return ((b > a) | (b != b)) ? b : a;
    return b > a ? b : a;
  } else if constexpr (E::kFloat) {
    return op == HVD_PROD ? a * b : a + b;
  } else {
    // Unsigned and not narrower than int: neither may a signed one overflow nor a short one become a signed int.
    using U = std::conditional_t<sizeof(Acc) == 8, uint64_t, uint32_t>;
    const U x = static_cast<U>(a), y = static_cast<U>(b);
    return static_cast<Acc>(op == HVD_PROD ? x * y : x + y);
  }
}

// Multiplies floats by a factor of the type that they are computed in, integers in double, truncated toward zero and
// clamped to their type; bool does not change.
template <class E>
HVD_INLINE typename E::Acc scaled(typename E::Acc v, double factor) {
  using T = typename E::Acc;
  if constexpr (E::kBool) {
    return v;
  } else if constexpr (E::kFloat) {
    return v * static_cast<T>(factor);
  } else {
    constexpr bool kSigned = std::is_signed_v<T>;
    constexpr int kDigits = static_cast<int>(sizeof(T)) * 8 - (kSigned ? 1 : 0);
    constexpr double kAbove = static_cast<double>(uint64_t{1} << (kDigits - 1)) * 2.0;  // one above the largest value
    constexpr T kMax = static_cast<T>(~uint64_t{0} >> (64 - kDigits));
    constexpr T kMin = kSigned ? static_cast<T>(-kMax - 1) : T{0};
    const double x = static_cast<double>(v) * factor;
    if (x != x) return T{0};
    if (x >= kAbove) return kMax;
    return x <= (kSigned ? -kAbove : 0.0) ? kMin : static_cast<T>(x);
  }
}

// -------------------------------------------------------------------------------------------------------- loops

template <class E>
HVD_INLINE typename E::Acc load(const void* p, uint64_t i) {
  typename E::Mem v;
  std::memcpy(&v, static_cast<const char*>(p) + i * sizeof(v), sizeof(v));
  return E::widen(v);
}
template <class E>
HVD_INLINE void store(void* p, uint64_t i, typename E::Acc acc) {
  const typename E::Mem v = E::narrow(acc);
  std::memcpy(static_cast<char*>(p) + i * sizeof(v), &v, sizeof(v));
}

// `ivdep`: out may be one of the operands, element for element. The vectoriser's overlap test would take the slow loop
// then.
template <class E, int op>
struct Combine {
  static HVD_INLINE void run(void* out, const void* a, const void* b, uint64_t n, double) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) store<E>(out, i, combine<E, op>(load<E>(a, i), load<E>(b, i)));
  }
};
template <class E>
struct Scale {
  static HVD_INLINE void run(void* out, const void* a, const void*, uint64_t n, double factor) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) store<E>(out, i, scaled<E>(load<E>(a, i), factor));
  }
};
template <class E>
struct Divide {
  static HVD_INLINE void run(void* out, const void* a, const void*, uint64_t n, double divisor) {
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

// Calls f(E{}) with the element type of a number; returns false for an unknown number.
template <class F>
bool with_element(int32_t dtype, F&& f) {
  switch (dtype) {
#define HVD_ELEMENT(NUMBER, ...) \
  case NUMBER:                   \
    f(__VA_ARGS__{});            \
    return true;
    HVD_ELEMENT(HVD_UINT8, Plain<uint8_t, false>)
    HVD_ELEMENT(HVD_INT8, Plain<int8_t, false>)
    HVD_ELEMENT(HVD_UINT16, Plain<uint16_t, false>)
    HVD_ELEMENT(HVD_INT16, Plain<int16_t, false>)
    HVD_ELEMENT(HVD_INT32, Plain<int32_t, false>)
    HVD_ELEMENT(HVD_INT64, Plain<int64_t, false>)
    HVD_ELEMENT(HVD_FLOAT16, Float16)
    HVD_ELEMENT(HVD_FLOAT32, Plain<float, true>)
    HVD_ELEMENT(HVD_FLOAT64, Plain<double, true>)
    HVD_ELEMENT(HVD_BOOL, Bool)
    HVD_ELEMENT(HVD_BFLOAT16, Bfloat16)
    HVD_ELEMENT(HVD_FLOAT8_E4M3FN, Float8E4M3fn)
    HVD_ELEMENT(HVD_FLOAT8_E5M2, Float8E5M2)
    HVD_ELEMENT(HVD_UINT32, Plain<uint32_t, false>)
    HVD_ELEMENT(HVD_UINT64, Plain<uint64_t, false>)
#undef HVD_ELEMENT
    default:
      return false;
  }
}

#undef HVD_INLINE

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
