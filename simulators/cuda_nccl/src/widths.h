// Bytes of one element of the types that hvd/backend_abi.h numbers.
#pragma once

#include <cstddef>

namespace cusim {

inline size_t width_of_abi(int dtype) {
  // uint8 int8 uint16 int16 int32 int64 float16 float32 float64 bool bfloat16 float8 float8 uint32 uint64
  constexpr unsigned char kWidths[] = {1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 1, 1, 4, 8};
  return dtype >= 0 && dtype < static_cast<int>(sizeof kWidths) ? kWidths[dtype] : 1;
}

}  // namespace cusim
