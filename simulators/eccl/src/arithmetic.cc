// Reductions element by element, in blocks that stay in the first-level cache. Called on streams' threads; pure.
#include "arithmetic.h"

#include <algorithm>
#include <hvd/backend.hpp>
#include <hvd/backend_elements.hpp>
#include <iterator>
#include <type_traits>

namespace sim {
namespace {

using hvd::arithmetic::Float8E4M3fn, hvd::arithmetic::Float8E5M2, hvd::arithmetic::Plain;
using hvd::arithmetic::load, hvd::arithmetic::store;

// HVD_* of each ecclDataType_t, and of the types after them.
constexpr int32_t kTypes[] = {HVD_INT8,    HVD_UINT8,   HVD_INT32,   HVD_UINT32,   HVD_INT64,         HVD_UINT64,
                              HVD_FLOAT16, HVD_FLOAT32, HVD_FLOAT64, HVD_BFLOAT16, HVD_FLOAT8_E4M3FN, HVD_FLOAT8_E5M2};

bool known(ecclDataType_t type) { return static_cast<unsigned>(type) < std::size(kTypes); }

// As hardware's saturating conversion: what is too large becomes the largest number.
template <class E, int largest>
struct Saturating : E {
  static uint8_t narrow(float v) { return E::narrow(v > largest ? largest : v < -largest ? -largest : v); }
};

// Calls `f` with an element type of hvd/backend_elements.hpp. Does nothing if there is no such type.
template <class F>
void with_type(ecclDataType_t type, F&& f) {
  if (!known(type)) return;
  hvd::arithmetic::with_element(kTypes[type], [&](auto element) {
    using E = decltype(element);
    if constexpr (std::is_same_v<E, Float8E4M3fn>) {
      f(Saturating<E, 448>{});
    } else if constexpr (std::is_same_v<E, Float8E5M2>) {
      f(Saturating<E, 57344>{});
    } else {
      f(element);
    }
  });
}

template <class E, int op, bool by_device>
typename E::Acc combine(typename E::Acc a, typename E::Acc b) {
  if constexpr (by_device && E::kFloat && (op == HVD_MIN || op == HVD_MAX)) {
    if (a != a) return b;
    if (b != b) return a;
  }
  return hvd::arithmetic::combine<E, op>(a, b);
}

// What `value` becomes in memory.
template <class E>
typename E::Acc rounded(typename E::Acc value) {
  return E::widen(E::narrow(value));
}

constexpr size_t kBlock = 1024;  // elements: what is computed in stays in the first-level cache

// E: the elements; C: the type that the computation is in.
template <class E, class C, int op, bool scaled, bool by_device>
void reduce_as(const std::vector<Source>& sources, size_t divisor, char* out, size_t count) {
  using A = typename C::Acc;
  constexpr bool kRounds = by_device && E::kFloat && !std::is_same_v<typename E::Mem, typename E::Acc>;
  A acc[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    bool first = true;
    for (const Source& source : sources) {
      const auto factor = static_cast<A>(source.factor);
      for (size_t i = 0; i < n; ++i) {
        A value = static_cast<A>(load<E>(source.data, begin + i));
        if constexpr (scaled) value = static_cast<A>(value * factor);
        if constexpr (scaled && kRounds) value = rounded<E>(value);
        acc[i] = first ? value : combine<C, op, by_device>(acc[i], value);
        if constexpr (kRounds) acc[i] = rounded<E>(acc[i]);
      }
      first = false;
    }
    if (divisor != 1) {
      for (size_t i = 0; i < n; ++i) acc[i] = static_cast<A>(acc[i] / static_cast<A>(divisor));
    }
    for (size_t i = 0; i < n; ++i) store<E>(out, begin + i, static_cast<typename E::Acc>(acc[i]));
  }
}

template <class E, bool by_device>
void reduce_type(const Reduction& how, const std::vector<Source>& sources, char* out, size_t count) {
  using A = typename E::Acc;
  using Wide = std::conditional_t<std::is_integral_v<A> && sizeof(A) < 8, Plain<int64_t, false>, E>;
  if (how.scaled) return reduce_as<E, Wide, HVD_SUM, true, by_device>(sources, 1, out, count);
  switch (how.op) {
    case ecclProd:
      return reduce_as<E, E, HVD_PROD, false, by_device>(sources, 1, out, count);
    case ecclMax:
      return reduce_as<E, E, HVD_MAX, false, by_device>(sources, 1, out, count);
    case ecclMin:
      return reduce_as<E, E, HVD_MIN, false, by_device>(sources, 1, out, count);
    case ecclAvg:
      return reduce_as<E, Wide, HVD_SUM, false, by_device>(sources, sources.size(), out, count);
    default:
      return reduce_as<E, E, HVD_SUM, false, by_device>(sources, 1, out, count);
  }
}

}  // namespace

size_t width_of(ecclDataType_t type) { return known(type) ? hvd::kDtypeBytes[kTypes[type]] : 0; }

const char* name_of(ecclDataType_t type) { return known(type) ? hvd::kDtypeNames[kTypes[type]] : "no type"; }

bool is_64_bit(ecclDataType_t type) { return width_of(type) == 8; }

void reduce(ecclDataType_t type, const Reduction& how, const std::vector<Source>& sources, char* out, size_t count) {
  with_type(type, [&](auto element) {
    using E = decltype(element);
    how.by_device ? reduce_type<E, true>(how, sources, out, count) : reduce_type<E, false>(how, sources, out, count);
  });
}

double scalar_of(ecclDataType_t type, const void* p) {
  double value = 0;
  with_type(type, [&](auto element) { value = static_cast<double>(load<decltype(element)>(p, 0)); });
  return value;
}

double rounded_to(ecclDataType_t type, double value) {
  with_type(type, [&](auto element) {
    using E = decltype(element);
    value = static_cast<double>(rounded<E>(static_cast<typename E::Acc>(value)));
  });
  return value;
}

}  // namespace sim
