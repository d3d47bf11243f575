// Element types: name, size, kind, and the reductions that each takes. Made from the table hvd/types.inc.
//
// The numbers are HVD_* of hvd/backend_abi.h. Functions take any number: an unknown one has 0 bytes and no reduction.
#pragma once

#include <hvd/backend_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::types {

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

}  // namespace hvd::types
