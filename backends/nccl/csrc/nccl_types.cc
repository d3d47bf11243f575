// See nccl_types.h. No state; any thread.
#include "nccl_types.h"

#include "nccl_api.h"

namespace {

constexpr uint64_t bit(int32_t n) { return uint64_t{1} << n; }
// Types whose scalar, which has the element's type, can hold any factor. A float16 cannot be 1e-8 or 1e5, and a
// bfloat16 has 8 bits, although the result may be in range and more precise.
constexpr uint64_t kScaled = bit(HVD_FLOAT32) | bit(HVD_FLOAT64);
constexpr uint64_t kFloats = kScaled | bit(HVD_FLOAT16) | bit(HVD_BFLOAT16);
constexpr uint64_t kIntegers =
    bit(HVD_INT8) | bit(HVD_UINT8) | bit(HVD_INT32) | bit(HVD_UINT32) | bit(HVD_INT64) | bit(HVD_UINT64);
constexpr uint64_t kFloat8 = bit(HVD_FLOAT8_E4M3FN) | bit(HVD_FLOAT8_E5M2);
// NCCL has no 16-bit integers.

bool in(uint64_t set, int32_t dtype) { return (set >> dtype) & 1; }

}  // namespace

bool is_float8(int32_t dtype) { return in(kFloat8, dtype); }

bool nccl_loses_nan(const hvd::Coll& c) {
  return in(kFloats | kFloat8, c.dtype()) && (c.op() == HVD_MIN || c.op() == HVD_MAX);
}

bool nccl_reduces(const hvd::Coll& c, int version) {
  const int32_t dtype = c.dtype();
  const bool scaled = c.prescale() != 1 || c.postscale() != 1, average = c.op() == HVD_AVG;
  // As uint8: the maximum is "or", the minimum "and".
  if (dtype == HVD_BOOL) return !average && !scaled;
  if (is_float8(dtype)) return version >= kNcclFloat8Version && !average && !scaled;
  // An average of integers must be that of the exact sum, but NCCL divides a sum that may have wrapped.
  if (in(kIntegers, dtype)) return !average && !scaled;
  if (!in(kFloats, dtype)) return false;
  // There is no operator that scales before a product, minimum or maximum.
  return !scaled || ((c.op() == HVD_SUM || average) && in(kScaled, dtype));
}

ncclDataType_t nccl_type(const hvd::Coll& c) {
  switch (c.dtype()) {
    case HVD_INT8:
      return ncclInt8;
    case HVD_UINT8:
    case HVD_BOOL:
      return ncclUint8;
    case HVD_INT32:
      return ncclInt32;
    case HVD_UINT32:
      return ncclUint32;
    case HVD_INT64:
      return ncclInt64;
    case HVD_UINT64:
      return ncclUint64;
    case HVD_FLOAT16:
      return ncclFloat16;
    case HVD_BFLOAT16:
      return ncclBfloat16;
    case HVD_FLOAT32:
      return ncclFloat32;
    case HVD_FLOAT64:
      return ncclFloat64;
    case HVD_FLOAT8_E4M3FN:
      return ncclFloat8e4m3;
    case HVD_FLOAT8_E5M2:
      return ncclFloat8e5m2;
    default:
      throw hvd::Error(HVD_E_UNSUPPORTED, "NCCL does not reduce elements of type " + std::to_string(c.dtype()));
  }
}

// Passes: L2.allreduce, L2.scaling
Reduction::Reduction(const hvd::Coll& c, ncclComm_t comm, int32_t size, const std::atomic<bool>& aborted)
    : aborted_(aborted) {
  constexpr ncclRedOp_t ops[HVD_REDOP_COUNT] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
  op_ = ops[c.op()];
  if (c.dtype() == HVD_BOOL) op_ = c.op() == HVD_SUM || c.op() == HVD_MAX ? ncclMax : ncclMin;
  double factor = c.prescale() * c.postscale();
  if (factor == 1) return;
  // A sum is linear: its factors may all be applied before it.
  if (c.op() == HVD_AVG) factor /= size;
  float narrow = static_cast<float>(factor);
  void* const scalar = c.dtype() == HVD_FLOAT32 ? static_cast<void*>(&narrow) : &factor;
  const ncclResult_t result =
      nccl().ncclRedOpCreatePreMulSum(&op_, scalar, nccl_type(c), ncclScalarHostImmediate, comm);
  check_nccl(result, "ncclRedOpCreatePreMulSum", comm);
  comm_ = comm;
}

Reduction::~Reduction() {
  // After an abort the communicator may be freed, and with it the operator.
  if (comm_ != nullptr && !aborted_.load()) nccl().ncclRedOpDestroy(op_, comm_);
}
