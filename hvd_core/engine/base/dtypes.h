// Element types: name, size, kind, and the reductions that each takes. Made from the table hvd/types.inc.
//
// The numbers are HVD_* of hvd/backend_abi.h. Functions take any number: an unknown one has 0 bytes and no reduction.
#pragma once

#include <hvd/backend_abi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace hvd::base {

enum class DtypeKind : uint8_t { Unsigned, Signed, Float, Bool };
// The reductions that a type takes. Logical: every one but AVG.
enum class Reductions : uint8_t { None, Logical, Every };

struct Dtype {
  int32_t number;
  const char* name;
  uint32_t bytes;
  DtypeKind kind;
  Reductions reductions;
};

inline constexpr std::array kDtypes{
#define HVD_DTYPE(ID, number, name, bytes, kind, reductions) \
  Dtype{number, #name, bytes, DtypeKind::kind, Reductions::reductions},
#include <hvd/types.inc>
};

#define HVD_DTYPE(ID, NUMBER, name, bytes, kind, reductions) \
  static_assert(HVD_##ID == NUMBER && kDtypes[NUMBER].number == NUMBER);
#include <hvd/types.inc>
static_assert(kDtypes.size() == HVD_DTYPE_COUNT);

constexpr bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < HVD_DTYPE_COUNT; }
constexpr const char* dtype_name(int32_t dtype) {
  return is_dtype(dtype) ? kDtypes[static_cast<size_t>(dtype)].name : "unknown";
}
constexpr uint64_t dtype_bytes(int32_t dtype) {
  return is_dtype(dtype) ? kDtypes[static_cast<size_t>(dtype)].bytes : 0;
}
constexpr bool is_integer(int32_t dtype) {
  if (!is_dtype(dtype)) return false;
  const DtypeKind kind = kDtypes[static_cast<size_t>(dtype)].kind;
  return kind == DtypeKind::Unsigned || kind == DtypeKind::Signed;
}
constexpr bool is_floating(int32_t dtype) {
  return is_dtype(dtype) && kDtypes[static_cast<size_t>(dtype)].kind == DtypeKind::Float;
}
constexpr bool is_unsigned(int32_t dtype) {
  return is_dtype(dtype) && kDtypes[static_cast<size_t>(dtype)].kind == DtypeKind::Unsigned;
}
// A floating-point type of 16 bits.
constexpr bool is_half(int32_t dtype) { return is_floating(dtype) && dtype_bytes(dtype) == 2; }
// Whether the engine reduces this type at all.
constexpr bool is_reducible(int32_t dtype) {
  return is_dtype(dtype) && kDtypes[static_cast<size_t>(dtype)].reductions != Reductions::None;
}
// Whether the engine reduces this type by HVD_SUM, ..., HVD_AVG.
constexpr bool is_reducible(int32_t dtype, int32_t op) {
  return is_reducible(dtype) && op >= 0 && op < HVD_REDOP_COUNT &&
         (op != HVD_AVG || kDtypes[static_cast<size_t>(dtype)].reductions == Reductions::Every);
}

// Sizes in bytes of what another rank announces: no product or sum of them wraps. Any thread.

// No buffer is larger: processes have address spaces of 2^47 or 2^48 bytes. So a sum of 2^15 sizes does not wrap
// either.
inline constexpr uint64_t kMostBytes = uint64_t{1} << 48;

// Nothing if a factor is negative, or if the product is more than `most`.
constexpr std::optional<uint64_t> product(std::span<const int64_t> factors, uint64_t bytes,
                                          uint64_t most = kMostBytes) {
  if (std::ranges::any_of(factors, [](int64_t f) { return f < 0; })) return std::nullopt;
  if (std::ranges::find(factors, 0) != factors.end()) return 0;
  for (const int64_t f : factors)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(f), &bytes) || bytes > most) return std::nullopt;
  return bytes;
}

}  // namespace hvd::base
