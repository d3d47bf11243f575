// Elements of every type of the ABI, one at a time: from memory to the type they are computed in, and back.
//
// The same code for the device and the host (plain C++17 there), so that a processor can show what a kernel computes.
// Values are those of <hvd/backend_reduce.hpp>, bit by bit: 16 and 8 bit floats are computed in float and rounded once,
// to nearest even; integers are scaled in double, truncated toward zero and held within the type. The bits
// of a NaN are not promised.
#pragma once

#include <hvd/backend_abi.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define HVD_BOTH __host__ __device__ __forceinline__
#define HVD_UNROLL _Pragma("unroll")
#else
#define HVD_BOTH inline
#define HVD_UNROLL
#endif

namespace hvd_kernels {

template <class To, class From>
HVD_BOTH To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits under another type");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// ------------------------------------------------------------------------------------------------------ in memory

// Mem: as it lies in memory. Value: the number that it stands for.
template <class T>
struct Plain {
  using Mem = T;
  using Value = T;
  static HVD_BOTH Value widen(Mem v) { return v; }
  static HVD_BOTH Mem narrow(Value v) { return v; }
};

struct Bool {
  using Mem = uint8_t;
  using Value = bool;
  static HVD_BOTH Value widen(Mem v) { return v != 0; }
  static HVD_BOTH Mem narrow(Value v) { return v; }
};

struct Bfloat16 {
  using Mem = uint16_t;
  using Value = float;
  static HVD_BOTH float widen(Mem v) { return bits_as<float>(static_cast<uint32_t>(v) << 16); }
  static HVD_BOTH Mem narrow(float v) {
    const uint32_t bits = bits_as<uint32_t>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Mem>((bits >> 16) | 0x40u);
    return static_cast<Mem>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

HVD_BOTH constexpr float power_of_two(int exponent) {
  float value = 1;
  for (int i = 0; i < exponent; ++i) value *= 2;
  for (int i = 0; i > exponent; --i) value /= 2;
  return value;
}

// One sign bit, then the exponent, then `fraction` bits. With `infinite` the top exponent holds infinity and NaN, as
// IEEE has it; without, only the number of all ones is NaN, which is also what too large a number becomes.
template <class M, int fraction, int bias, bool infinite>
struct SmallFloat {
  using Mem = M;
  using Value = float;
  static constexpr int kBits = static_cast<int>(sizeof(M)) * 8, kShift = 23 - fraction;
  static constexpr uint32_t kMagnitude = (1u << (kBits - 1)) - 1;
  static constexpr uint32_t kInfinity = kMagnitude & ~((1u << fraction) - 1u);
  static constexpr uint32_t kTop = infinite ? kInfinity : kMagnitude;
  static constexpr uint32_t kNan = infinite ? kInfinity | (1u << (fraction - 1)) : kMagnitude;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - bias) << 23;

  static HVD_BOTH float widen(Mem v) {
    constexpr float kUnit = power_of_two(1 - bias - fraction);
    const uint32_t sign = static_cast<uint32_t>(v & (kMagnitude + 1)) << (32 - kBits);
    const uint32_t rest = v & kMagnitude;
    uint32_t bits = (rest << kShift) + kRebias;
    if (rest < (1u << fraction)) bits = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(rest)) * kUnit);
    if (rest >= kTop) bits = infinite && rest == kInfinity ? 0x7f800000u : 0x7fc00000u | (rest << kShift);
    return bits_as<float>(bits | sign);
  }
  static HVD_BOTH Mem narrow(float v) {
    // Added to this, a number below the smallest normal one is rounded by the adder to the multiple that is wanted.
    constexpr float kAlign = power_of_two(24 - bias - fraction);
    const uint32_t bits = bits_as<uint32_t>(v), rest = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> (32 - kBits)) & (kMagnitude + 1);
    uint32_t number = (rest + (1u << (kShift - 1)) - 1u + ((rest >> kShift) & 1u) - kRebias) >> kShift;
    if (number > kTop) number = kTop;
    if (rest < kRebias + (1u << 23))
      number = bits_as<uint32_t>(bits_as<float>(rest) + kAlign) - bits_as<uint32_t>(kAlign);
    if (rest > 0x7f800000u) number = kNan;
    return static_cast<Mem>(number | sign);
  }
};
using Float8E4M3fn = SmallFloat<uint8_t, 3, 7, false>;
using Float8E5M2 = SmallFloat<uint8_t, 2, 15, true>;

// The device converts float16 by one instruction of its own each way, which rounds as the arithmetic above does.
struct Float16 : SmallFloat<uint16_t, 10, 15, true> {
#ifdef __CUDA_ARCH__
  static __device__ __forceinline__ float widen(Mem v) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v));
    return wide;
  }
  static __device__ __forceinline__ Mem narrow(float v) {
    Mem half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(v));
    return half;
  }
#endif
};

// f(E{}) with the element type of a number of the ABI.
#define HVD_ELEMENT(NUMBER, ...) \
  case NUMBER:                   \
    return f(__VA_ARGS__{});

template <class F>
HVD_BOTH void with_small_float(int32_t dtype, F&& f) {  // and float32
  switch (dtype) {
    HVD_ELEMENT(HVD_FLOAT16, Float16)
    HVD_ELEMENT(HVD_BFLOAT16, Bfloat16)
    HVD_ELEMENT(HVD_FLOAT8_E4M3FN, Float8E4M3fn)
    HVD_ELEMENT(HVD_FLOAT8_E5M2, Float8E5M2)
    default:
      return f(Plain<float>{});
  }
}
template <class F>
HVD_BOTH void with_integer(int32_t dtype, F&& f) {  // and bool
  switch (dtype) {
    HVD_ELEMENT(HVD_UINT8, Plain<uint8_t>)
    HVD_ELEMENT(HVD_INT8, Plain<int8_t>)
    HVD_ELEMENT(HVD_UINT16, Plain<uint16_t>)
    HVD_ELEMENT(HVD_INT16, Plain<int16_t>)
    HVD_ELEMENT(HVD_INT32, Plain<int32_t>)
    HVD_ELEMENT(HVD_UINT32, Plain<uint32_t>)
    HVD_ELEMENT(HVD_INT64, Plain<int64_t>)
    HVD_ELEMENT(HVD_UINT64, Plain<uint64_t>)
    default:
      return f(Bool{});
  }
}
#undef HVD_ELEMENT

HVD_BOTH bool is_small_float(int32_t dtype) {  // or float32
  return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT8_E4M3FN ||
         dtype == HVD_FLOAT8_E5M2;
}
HVD_BOTH bool is_integer(int32_t dtype) {  // or bool
  return !is_small_float(dtype) && dtype != HVD_FLOAT64;
}

// The types that can be computed in W, one of float, double and int64_t.
template <class W, class F>
HVD_BOTH void with_element(int32_t dtype, F&& f) {
  if constexpr (std::is_same_v<W, float>) {
    with_small_float(dtype, f);
  } else if constexpr (std::is_same_v<W, int64_t>) {
    with_integer(dtype, f);
  } else if (dtype == HVD_FLOAT64) {
    f(Plain<double>{});
  } else if (is_small_float(dtype)) {
    with_small_float(dtype, f);
  } else {
    with_integer(dtype, f);
  }
}

HVD_BOTH uint32_t bytes_of(int32_t dtype) {
  switch (dtype) {
    case HVD_UINT16:
    case HVD_INT16:
    case HVD_FLOAT16:
    case HVD_BFLOAT16:
      return 2;
    case HVD_INT32:
    case HVD_UINT32:
    case HVD_FLOAT32:
      return 4;
    case HVD_INT64:
    case HVD_UINT64:
    case HVD_FLOAT64:
      return 8;
    default:
      return 1;
  }
}

// ---------------------------------------------------------------------------------------------- what it is computed in

template <class E, class W>
HVD_BOTH W wide(typename E::Mem v) {
  return static_cast<W>(E::widen(v));
}

// The largest number that is not too large for T, in double: one more than T holds where that has more digits.
template <class T>
HVD_BOTH T held_within(double v) {
  constexpr bool kSigned = std::is_signed_v<T>;
  constexpr int kDigits = static_cast<int>(sizeof(T)) * 8 - (kSigned ? 1 : 0);
  constexpr double kAbove = static_cast<double>(uint64_t{1} << (kDigits - 1)) * 2.0;
  constexpr T kMost = static_cast<T>(~uint64_t{0} >> (64 - kDigits));
  constexpr T kLeast = kSigned ? static_cast<T>(-kMost - 1) : T{0};
  if (v != v) return T{0};
  if (v >= kAbove) return kMost;
  if (v <= (kSigned ? -kAbove : 0.0)) return kLeast;
  return static_cast<T>(v);
}

template <class E>
HVD_BOTH typename E::Mem stored(float v) {
  return E::narrow(v);
}
template <class E>
HVD_BOTH typename E::Mem stored(double v) {
  using Value = typename E::Value;
  if constexpr (std::is_same_v<Value, bool>) {
    return v != 0;
  } else if constexpr (std::is_integral_v<Value>) {
    return held_within<Value>(v);
  } else {
    return E::narrow(static_cast<Value>(v));
  }
}
template <class E, class Integer>
HVD_BOTH typename E::Mem stored(Integer v) {
  static_assert(std::is_integral_v<Integer>, "of floating types there are two, above");
  if constexpr (std::is_same_v<typename E::Value, bool>) {
    return v != 0;
  } else {
    return static_cast<typename E::Mem>(v);
  }
}

// ------------------------------------------------------------------------------------------------------- reductions

// What elements are combined in: float for the small ones, else 32 or 64 bits of their own kind.
template <class E>
struct Combined {
  using Value = typename E::Value;
  using Narrow = std::conditional_t<std::is_signed_v<Value>, int32_t, uint32_t>;
  using Type = std::conditional_t<std::is_floating_point_v<Value> || sizeof(Value) == 8, Value, Narrow>;
};

// Sums and products of integers wrap; their low bits are those of the narrower type's.
template <class E, class W>
HVD_BOTH W combine(int32_t op, W a, W b) {
  if constexpr (std::is_same_v<typename E::Value, bool>) {
    return op == HVD_SUM || op == HVD_MAX ? a | b : a & b;
  } else if constexpr (std::is_integral_v<W>) {
    using U = std::make_unsigned_t<W>;
    if (op == HVD_SUM) return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
    if (op == HVD_PROD) return static_cast<W>(static_cast<U>(a) * static_cast<U>(b));
    return (op == HVD_MIN ? b < a : b > a) ? b : a;
  } else {
    if (op == HVD_SUM) return a + b;
    if (op == HVD_PROD) return a * b;
    return (op == HVD_MIN ? b < a : b > a) || b != b ? b : a;  // a NaN on either side stays
  }
}

}  // namespace hvd_kernels
