// Reductions: HVD_SUM, ..., HVD_AVG of hvd/backend_abi.h, and Adasum, which no backend carries out. Made from the table
// hvd/types.inc.
#pragma once

#include <hvd/backend_abi.h>
#include <hvd/frontend_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::types {

#define HVD_REDUCTION(ID, number, name, label, user_number) static_assert(HVD_##ID == number);
#define HVD_ENGINE_REDUCTION(ID, number, name, label, user_number) static_assert(HVD_FE_##ID == number);
#include <hvd/types.inc>

// As a reduce op of a call. In the engine Adasum is an operation of its own (OpKind::Adasum).
inline constexpr int32_t kAdasum = HVD_FE_ADASUM;

inline constexpr std::array kReductionLabels{
#define HVD_REDUCTION(ID, number, name, label, user_number) #label,
#include <hvd/types.inc>
};
static_assert(kReductionLabels.size() == HVD_REDOP_COUNT);

constexpr bool is_reduce_op(int32_t op) { return op >= 0 && op < HVD_REDOP_COUNT; }
// "Sum", as in messages and in hvd.Sum; "unknown" for a number that is not a backend's reduction.
constexpr const char* reduce_op_name(int32_t op) {
  return is_reduce_op(op) ? kReductionLabels[static_cast<size_t>(op)] : "unknown";
}

}  // namespace hvd::types
