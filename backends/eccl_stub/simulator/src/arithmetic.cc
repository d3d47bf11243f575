// Reductions element by element, in blocks that stay in the first-level cache. Called on streams' threads; pure.
#include "arithmetic.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
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

// Element types as they lie in memory, and what they are computed in.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

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

constexpr size_t kBlock = 1024;  // elements: what is computed in stays in the first-level cache

// A: computed in; Scale: whether factors count.
template <class T, class A, class Op, bool Scale>
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
        acc[i] = first ? value : Op::combine(acc[i], value);
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
  using Wide = std::conditional_t<std::is_integral_v<A>, int64_t, A>;  // all integers that are reduced have 32 bits
  if (how.scaled) return reduce_as<T, Wide, Sum, true>(sources, 1, out, count);
  switch (how.op) {
    case ecclProd:
      return reduce_as<T, A, Prod, false>(sources, 1, out, count);
    case ecclMax:
      return reduce_as<T, A, Max, false>(sources, 1, out, count);
    case ecclMin:
      return reduce_as<T, A, Min, false>(sources, 1, out, count);
    case ecclAvg:
      return reduce_as<T, Wide, Sum, false>(sources, sources.size(), out, count);
    default:
      return reduce_as<T, A, Sum, false>(sources, 1, out, count);
  }
}

constexpr struct {
  size_t width;
  const char* name;
} kTypes[ecclNumTypes] = {{1, "int8"},   {1, "uint8"},   {4, "int32"},   {4, "uint32"},  {8, "int64"},
                          {8, "uint64"}, {2, "float16"}, {4, "float32"}, {8, "float64"}, {2, "bfloat16"}};

bool known(ecclDataType_t type) { return static_cast<unsigned>(type) < ecclNumTypes; }

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
  switch (type) {
    case ecclInt8:
      return reduce_type<int8_t>(how, sources, out, count);
    case ecclUint8:
      return reduce_type<uint8_t>(how, sources, out, count);
    case ecclInt32:
      return reduce_type<int32_t>(how, sources, out, count);
    case ecclUint32:
      return reduce_type<uint32_t>(how, sources, out, count);
    case ecclFloat16:
      return reduce_type<Half>(how, sources, out, count);
    case ecclBfloat16:
      return reduce_type<Bfloat>(how, sources, out, count);
    case ecclFloat32:
      return reduce_type<float>(how, sources, out, count);
    default:
      return;  // 64-bit types never come here
  }
}

double scalar_of(ecclDataType_t type, const void* p) {
  switch (type) {
    case ecclInt8:
      return number<int8_t>(p);
    case ecclUint8:
      return number<uint8_t>(p);
    case ecclInt32:
      return number<int32_t>(p);
    case ecclUint32:
      return number<uint32_t>(p);
    case ecclFloat16:
      return number<Half>(p);
    case ecclBfloat16:
      return number<Bfloat>(p);
    case ecclFloat32:
      return number<float>(p);
    default:
      return 0;
  }
}

}  // namespace sim
