// See eccl_types.h. No state; any thread.
#include "eccl_types.h"

#include <cmath>

namespace {

constexpr uint64_t bit(int32_t n) { return uint64_t{1} << n; }
constexpr uint64_t kFloats = bit(HVD_FLOAT16) | bit(HVD_BFLOAT16) | bit(HVD_FLOAT32);
// ECCL has 64-bit types for broadcast and allgather only, and neither 16-bit integers, bool nor 8-bit floats.
constexpr uint64_t kReduced = kFloats | bit(HVD_INT8) | bit(HVD_UINT8) | bit(HVD_INT32) | bit(HVD_UINT32);

bool in(uint64_t set, int32_t dtype) { return (set >> dtype) & 1; }

// The nearest 16-bit float with this many bits of mantissa, ties to even. The factors given are finite.
uint16_t short_float(double value, int mantissa, int least_exponent, int bias) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), least_exponent);
  const auto scaled = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, mantissa - exponent)));
  // A carry out of the mantissa moves into the exponent by itself; below the least exponent there is no leading one.
  const uint32_t bits = (static_cast<uint32_t>(exponent + bias - 1) << mantissa) + scaled;
  const uint32_t infinity = 0x7fffu >> mantissa << mantissa;
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

}  // namespace

bool eccl_reduces(const hvd::Coll& c) {
  if (!in(kReduced, c.dtype())) return false;
  // ecclAvg divides in the element's type, which truncates partial sums of integers; a scalar of an integer's type
  // cannot be a fraction; and a factor that is applied before a product, minimum or maximum has no operator.
  if (c.op() == HVD_AVG) return in(kFloats, c.dtype());
  if (c.prescale() == 1 && c.postscale() == 1) return true;
  return c.op() == HVD_SUM && in(kFloats, c.dtype());
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
  // What is linear may be scaled before instead of after.
  if (c.op() == HVD_AVG) factor /= size;
  float wide = static_cast<float>(factor);
  uint16_t narrow = c.dtype() == HVD_FLOAT16 ? short_float(factor, 10, -14, 15) : short_float(factor, 7, -126, 127);
  void* scalar = c.dtype() == HVD_FLOAT32 ? static_cast<void*>(&wide) : &narrow;
  ECCL(ecclRedOpCreatePreMulSum(&op_, scalar, eccl_type(c), ecclScalarHostImmediate, comm));
  comm_ = comm;
}

Reduction::~Reduction() {
  if (comm_ != nullptr) eccl().ecclRedOpDestroy(op_, comm_);
}
