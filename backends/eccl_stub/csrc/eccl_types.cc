// See eccl_types.h. No state; any thread.
#include "eccl_types.h"

#include <cmath>

namespace {

constexpr uint64_t bit(int32_t n) { return uint64_t{1} << n; }
constexpr uint64_t kScaled = bit(HVD_BFLOAT16) | bit(HVD_FLOAT32);
constexpr uint64_t kFloats = kScaled | bit(HVD_FLOAT16);
// ECCL has 64-bit types for broadcast and allgather only, and neither 16-bit integers, bool nor 8-bit floats.
constexpr uint64_t kReduced = kFloats | bit(HVD_INT8) | bit(HVD_UINT8) | bit(HVD_INT32) | bit(HVD_UINT32);

bool in(uint64_t set, int32_t dtype) { return (set >> dtype) & 1; }

// The nearest bfloat16, ties to even, of a finite value.
uint16_t bfloat16(double value) {
  constexpr int kMantissa = 7, kLeastExponent = -126, kBias = 127;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), kLeastExponent);
  const auto scaled = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, kMantissa - exponent)));
  // A carry out of the mantissa goes into the exponent; below the least exponent there is no leading one.
  const uint32_t bits = (static_cast<uint32_t>(exponent + kBias - 1) << kMantissa) + scaled;
  constexpr uint32_t kInfinity = 0x7fffu >> kMantissa << kMantissa;
  return static_cast<uint16_t>(sign | std::min(bits, kInfinity));
}

}  // namespace

bool eccl_reduces(const hvd::Coll& c) {
  if (!in(kReduced, c.dtype())) return false;
  // ecclAvg divides in the element's type, which truncates partial sums of integers. A scalar has the element's type:
  // an integer cannot be a fraction, and a float16 cannot be 1e-8 or 1e5 although the result may be in range. There is
  // no operator that scales before a product, minimum or maximum.
  const bool scaled = c.prescale() != 1 || c.postscale() != 1;
  if (c.op() == HVD_AVG) return in(scaled ? kScaled : kFloats, c.dtype());
  return !scaled || (c.op() == HVD_SUM && in(kScaled, c.dtype()));
}

ecclDataType_t eccl_type(const hvd::Coll& c) {
  switch (c.dtype()) {
    case HVD_INT8:
      return ecclInt8;
    case HVD_UINT8:
      return ecclUint8;
    case HVD_INT32:
      return ecclInt32;
    case HVD_UINT32:
      return ecclUint32;
    case HVD_FLOAT16:
      return ecclFloat16;
    case HVD_BFLOAT16:
      return ecclBfloat16;
    case HVD_FLOAT32:
      return ecclFloat32;
    default:
      throw hvd::Error(HVD_E_UNSUPPORTED, "ECCL does not reduce elements of type " + std::to_string(c.dtype()));
  }
}

// Passes: L2.allreduce, L2.scaling
Reduction::Reduction(const hvd::Coll& c, ecclComm_t comm, int32_t size) {
  constexpr ecclRedOp_t ops[HVD_REDOP_COUNT] = {ecclSum, ecclProd, ecclMin, ecclMax, ecclAvg};
  op_ = ops[c.op()];
  double factor = c.prescale() * c.postscale();
  if (factor == 1) return;
  // A sum is linear: its factors may all be applied before it.
  if (c.op() == HVD_AVG) factor /= size;
  float wide = static_cast<float>(factor);
  uint16_t narrow = bfloat16(factor);
  void* scalar = c.dtype() == HVD_FLOAT32 ? static_cast<void*>(&wide) : &narrow;
  ECCL(ecclRedOpCreatePreMulSum(&op_, scalar, eccl_type(c), ecclScalarHostImmediate, comm));
  comm_ = comm;
}

Reduction::~Reduction() {
  if (comm_ != nullptr) eccl().ecclRedOpDestroy(op_, comm_);
}
