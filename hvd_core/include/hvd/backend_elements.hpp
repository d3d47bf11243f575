// The element types of host memory: how each is read, combined, scaled and written. One element at a time; the loops of
// backend_reduce.hpp and the kernels of the embedded backends are over these.
//
// Header-only, C++17, pure functions of any thread. Nothing need be aligned. All functions are inlined wherever they
// are called, so that files that are compiled for different processors share none of them.
#ifndef HVD_BACKEND_ELEMENTS_HPP_
#define HVD_BACKEND_ELEMENTS_HPP_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hvd/backend_abi.h"

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

HVD_INLINE constexpr float power_of_two(int exponent) {
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
    return static_cast<Mem>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);  // vectorises, and faster than pick()
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
    constexpr float kSmallest = power_of_two(1 - bias - fraction);
    const uint32_t tiny = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(rest)) * kSmallest);
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
#ifdef __aarch64__
struct Float16 : SmallFloat<uint16_t, 10, 15, true> {  // the processor's own conversions, which vectorise
  static HVD_INLINE Acc widen(Mem v) { return static_cast<float>(bits_as<__fp16>(v)); }
  static HVD_INLINE Mem narrow(Acc v) { return bits_as<Mem>(static_cast<__fp16>(v)); }
};
#else
using Float16 = SmallFloat<uint16_t, 10, 15, true>;
#endif
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
}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_ELEMENTS_HPP_
