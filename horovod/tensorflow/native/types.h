// Element types: TensorFlow's numbers and the engine's.
#pragma once

#include <hvd/backend_abi.h>

#include <cstddef>
#include <cstdint>

namespace hvd_tf {

enum TfType {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
  kFloat8E5m2 = 24,
  kFloat8E4m3fn = 25
};

struct Type {
  int tf;
  int hvd;
  size_t size;
};

// The dtypes of reductions, for the `T: {...}` of an operation. Movable dtypes include 8-bit floats, which TensorFlow
// does not accept there, so kernels check these.
inline constexpr const char* kReducible = "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}";

inline constexpr Type kTypes[] = {
    {kFloat, HVD_FLOAT32, 4},
    {kDouble, HVD_FLOAT64, 8},
    {kInt32, HVD_INT32, 4},
    {kUint8, HVD_UINT8, 1},
    {kInt16, HVD_INT16, 2},
    {kInt8, HVD_INT8, 1},
    {kInt64, HVD_INT64, 8},
    {kBool, HVD_BOOL, 1},
    {kBfloat16, HVD_BFLOAT16, 2},
    {kUint16, HVD_UINT16, 2},
    {kHalf, HVD_FLOAT16, 2},
    {kUint32, HVD_UINT32, 4},
    {kUint64, HVD_UINT64, 8},
    {kFloat8E5m2, HVD_FLOAT8_E5M2, 1},
    {kFloat8E4m3fn, HVD_FLOAT8_E4M3FN, 1},
};

// The element type with TensorFlow's number `tf`, or null.
inline const Type* type_of(int tf) {
  for (const Type& type : kTypes)
    if (type.tf == tf) return &type;
  return nullptr;
}

// The element type with the engine's number `hvd`, or null.
inline const Type* type_of_hvd(int hvd) {
  for (const Type& type : kTypes)
    if (type.hvd == hvd) return &type;
  return nullptr;
}

}  // namespace hvd_tf
