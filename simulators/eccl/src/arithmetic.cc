// Reductions element by element, in blocks that stay in the first-level cache. Called on streams' threads; pure.
#include "arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

namespace sim {
namespace {

float from_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

uint32_t to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

// Element types as they lie in memory, and the types they are computed in.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};
// e4m3fn: no infinities, one NaN; e5m2 as in IEEE 754. Both are stored as hardware's saturating conversion does it.
template <int kMantissa, int kLeastExponent, uint8_t kLargest>
struct Float8 {
  uint8_t bits;
};
using Float8e4m3 = Float8<3, -6, 0x7e>;
using Float8e5m2 = Float8<2, -14, 0x7b>;

float load(Bfloat b) { return from_bits(static_cast<uint32_t>(b.bits) << 16); }

float load(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16, rest = h.bits & 0x7fffu;
  if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // As a float32 the exponent is 112 too small; multiplying by 2^112 mends it, subnormals included.
  return from_bits(sign | rest << 13) * from_bits(239u << 23);
}

void store(float f, Bfloat* out) {
  const uint32_t u = to_bits(f);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  out->bits = static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void store(float f, Half* out) {
  const uint32_t u = to_bits(f), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  uint32_t h;
  if (rest > 0x7f800000u) {
    h = 0x7e00u;
  } else if (rest >= 0x477ff000u) {  // rounds to 65536 or more
    h = 0x7c00u;
  } else if (rest < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the last bits
    h = to_bits(from_bits(rest) + 0.5f) - to_bits(0.5f);
  } else {
    h = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | h);
}

template <int M, int E, uint8_t L>
float load(Float8<M, E, L> f) {
  const int rest = f.bits & 0x7f, exponent = rest >> M, mantissa = rest & ((1 << M) - 1);
  float value =
      std::ldexp(static_cast<float>(mantissa + (exponent == 0 ? 0 : 1 << M)), std::max(exponent, 1) - 1 + E - M);
  if (rest > L) value = M == 2 && mantissa == 0 ? HUGE_VALF : NAN;
  return (f.bits & 0x80) != 0 ? -value : value;
}

template <int M, int E, uint8_t L>
void store(float f, Float8<M, E, L>* out) {
  int code = 0x7f;
  if (std::isinf(f)) {
    code = L;
  } else if (!std::isnan(f)) {
    const int exponent = f == 0 ? E : std::max(std::ilogb(f), E);
    // In units of the last place there; a carry out of the mantissa makes the next exponent.
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(f), M - exponent)));
    code = exponent > 64 ? L : std::min<int>(((exponent - E) << M) + units, L);
  }
  out->bits = static_cast<uint8_t>(code | (std::signbit(f) ? 0x80 : 0));
}

template <class T>
T load(T v) {
  return v;
}

template <class T>
void store(T v, T* out) {
  *out = v;
}

// The type that values are combined in. Integers as unsigned, where overflow is defined.
template <class T, class = void>
struct Computed {
  using type = float;
};
template <class T>
struct Computed<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
  using type = T;
};

struct Sum {
  template <class A>
  static A combine(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};
struct Prod {
  template <class A>
  static A combine(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
struct Max {
  template <class A>
  static A combine(A a, A b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class A>
  static A combine(A a, A b) {
    return a < b || a != a ? a : b;
  }
};

// As devices have it: a NaN loses against a number.
struct MaxNumber {
  template <class A>
  static A combine(A a, A b) {
    return a > b || b != b ? a : b;
  }
};
struct MinNumber {
  template <class A>
  static A combine(A a, A b) {
    return a < b || b != b ? a : b;
  }
};

constexpr size_t kBlock = 1024;  // elements: what is computed in stays in the first-level cache

// What `value` becomes when it is kept as a T.
template <class T, class A>
A rounded(A value) {
  T kept;
  store(value, &kept);
  return load(kept);
}

// A: computed in; Scale: whether factors count; Step: whether each step is rounded.
template <class T, class A, class Op, bool Scale, bool Step>
void reduce_as(const std::vector<Source>& sources, size_t divisor, char* out, size_t count) {
  A acc[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    bool first = true;
    for (const Source& source : sources) {
      const T* in = reinterpret_cast<const T*>(source.data) + begin;
      const auto factor = static_cast<A>(source.factor);
      for (size_t i = 0; i < n; ++i) {
        A value = static_cast<A>(load(in[i]));
        if constexpr (Scale) value = static_cast<A>(value * factor);
        if constexpr (Scale && Step) value = rounded<T>(value);
        acc[i] = first ? value : Op::combine(acc[i], value);
        if constexpr (Step) acc[i] = rounded<T>(acc[i]);
      }
      first = false;
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    using Stored = typename Computed<T>::type;
    if (divisor != 1) {
      const auto by = static_cast<A>(divisor);
      for (size_t i = 0; i < n; ++i) acc[i] = static_cast<A>(acc[i] / by);
    }
    for (size_t i = 0; i < n; ++i) store(static_cast<Stored>(acc[i]), &to[i]);
  }
}

template <class T>
void reduce_type(const Reduction& how, const std::vector<Source>& sources, char* out, size_t count) {
  using A = typename Computed<T>::type;
  using Wide = std::conditional_t<std::is_integral_v<A> && sizeof(A) < 8, int64_t, A>;
  constexpr bool kSmallFloat = !std::is_arithmetic_v<T>;
  if constexpr (kSmallFloat) {
    if (how.by_device && how.op == ecclProd) return reduce_as<T, A, Prod, false, true>(sources, 1, out, count);
    if (how.by_device && how.scaled) return reduce_as<T, A, Sum, true, true>(sources, 1, out, count);
    if (how.by_device && how.op == ecclSum) return reduce_as<T, A, Sum, false, true>(sources, 1, out, count);
  }
  if constexpr (!std::is_integral_v<T>) {
    if (how.by_device && how.op == ecclMax) return reduce_as<T, A, MaxNumber, false, false>(sources, 1, out, count);
    if (how.by_device && how.op == ecclMin) return reduce_as<T, A, MinNumber, false, false>(sources, 1, out, count);
  }
  if (how.scaled) return reduce_as<T, Wide, Sum, true, false>(sources, 1, out, count);
  switch (how.op) {
    case ecclProd:
      return reduce_as<T, A, Prod, false, false>(sources, 1, out, count);
    case ecclMax:
      return reduce_as<T, A, Max, false, false>(sources, 1, out, count);
    case ecclMin:
      return reduce_as<T, A, Min, false, false>(sources, 1, out, count);
    case ecclAvg:
      return reduce_as<T, Wide, Sum, false, false>(sources, sources.size(), out, count);
    default:
      return reduce_as<T, A, Sum, false, false>(sources, 1, out, count);
  }
}

constexpr struct {
  size_t width;
  const char* name;
} kTypes[] = {{1, "int8"},    {1, "uint8"},   {4, "int32"},   {4, "uint32"},   {8, "int64"},       {8, "uint64"},
              {2, "float16"}, {4, "float32"}, {8, "float64"}, {2, "bfloat16"}, {1, "float8_e4m3"}, {1, "float8_e5m2"}};

bool known(ecclDataType_t type) { return static_cast<unsigned>(type) < std::size(kTypes); }

// Calls `with` with a value of the C++ type. False: no such type.
template <class With>
bool dispatch(ecclDataType_t type, With&& with) {
  switch (static_cast<int>(type)) {
    case ecclInt8:
      return with(int8_t{}), true;
    case ecclUint8:
      return with(uint8_t{}), true;
    case ecclInt32:
      return with(int32_t{}), true;
    case ecclUint32:
      return with(uint32_t{}), true;
    case ecclInt64:
      return with(int64_t{}), true;
    case ecclUint64:
      return with(uint64_t{}), true;
    case ecclFloat16:
      return with(Half{}), true;
    case ecclFloat32:
      return with(float{}), true;
    case ecclFloat64:
      return with(double{}), true;
    case ecclBfloat16:
      return with(Bfloat{}), true;
    case kFloat8e4m3:
      return with(Float8e4m3{}), true;
    case kFloat8e5m2:
      return with(Float8e5m2{}), true;
    default:
      return false;
  }
}

template <class T>
double number(const void* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return static_cast<double>(load(v));
}

}  // namespace

size_t width_of(ecclDataType_t type) { return known(type) ? kTypes[type].width : 0; }

const char* name_of(ecclDataType_t type) { return known(type) ? kTypes[type].name : "no type"; }

bool is_64_bit(ecclDataType_t type) { return width_of(type) == 8; }

void reduce(ecclDataType_t type, const Reduction& how, const std::vector<Source>& sources, char* out, size_t count) {
  dispatch(type, [&](auto sample) { reduce_type<decltype(sample)>(how, sources, out, count); });
}

double scalar_of(ecclDataType_t type, const void* p) {
  double value = 0;
  dispatch(type, [&](auto sample) { value = number<decltype(sample)>(p); });
  return value;
}

double rounded_to(ecclDataType_t type, double value) {
  dispatch(type, [&](auto sample) {
    using A = typename Computed<decltype(sample)>::type;
    value = static_cast<double>(rounded<decltype(sample)>(static_cast<A>(value)));
  });
  return value;
}

}  // namespace sim
