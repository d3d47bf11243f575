// See neutral.h.
#include "engine/data/neutral.h"

#include <hvd/backend_abi.h>

#include <cstring>
#include <limits>

namespace hvd::data {
namespace {

template <typename T>
void fill(void* data, uint64_t bytes, T value) {
  auto* p = static_cast<char*>(data);
  for (uint64_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) std::memcpy(p + i, &value, sizeof value);
}

template <typename T>
void fill_identity(void* data, uint64_t bytes, int32_t op) {
  using L = std::numeric_limits<T>;
  const T largest = L::has_infinity ? L::infinity() : L::max();
  const T smallest = L::has_infinity ? -L::infinity() : L::lowest();
  fill<T>(data, bytes, op == HVD_PROD ? T{1} : op == HVD_MIN ? largest : op == HVD_MAX ? smallest : T{0});
}

// 16-bit floats by their bit patterns.
void fill_bits(void* data, uint64_t bytes, int32_t op, uint16_t one, uint16_t infinity) {
  const auto minus_infinity = static_cast<uint16_t>(infinity | 0x8000);
  fill<uint16_t>(data, bytes, op == HVD_PROD ? one : op == HVD_MIN ? infinity : op == HVD_MAX ? minus_infinity : 0);
}

}  // namespace

void fill_neutral(void* data, uint64_t bytes, int32_t dtype, int32_t op) {
  switch (dtype) {
    case HVD_UINT8:
      return fill_identity<uint8_t>(data, bytes, op);
    case HVD_INT8:
      return fill_identity<int8_t>(data, bytes, op);
    case HVD_UINT16:
      return fill_identity<uint16_t>(data, bytes, op);
    case HVD_INT16:
      return fill_identity<int16_t>(data, bytes, op);
    case HVD_INT32:
      return fill_identity<int32_t>(data, bytes, op);
    case HVD_INT64:
      return fill_identity<int64_t>(data, bytes, op);
    case HVD_UINT32:
      return fill_identity<uint32_t>(data, bytes, op);
    case HVD_UINT64:
      return fill_identity<uint64_t>(data, bytes, op);
    case HVD_FLOAT32:
      return fill_identity<float>(data, bytes, op);
    case HVD_FLOAT64:
      return fill_identity<double>(data, bytes, op);
    case HVD_FLOAT16:
      return fill_bits(data, bytes, op, 0x3c00, 0x7c00);
    case HVD_BFLOAT16:
      return fill_bits(data, bytes, op, 0x3f80, 0x7f80);
    case HVD_BOOL:  // product and min are "and"
      return fill<uint8_t>(data, bytes, op == HVD_PROD || op == HVD_MIN ? 1 : 0);
    default:
      std::memset(data, 0, bytes);
  }
}

}  // namespace hvd::data
