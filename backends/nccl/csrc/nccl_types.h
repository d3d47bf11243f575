// What NCCL can reduce, and how a reduction is said in its words. No state; any thread.
#pragma once

#include <atomic>
#include <hvd/backend.hpp>

#include "nccl_abi.h"

// Moving data needs no element type: broadcast, allgather and the like go as this many of these.
inline constexpr ncclDataType_t kBytes = ncclInt8;

// Does NCCL of this version do the arithmetic of this reduction, with the results that the ABI demands? The answer is
// the same on all ranks, since all ranks have the same version (hvd-core compares).
bool nccl_reduces(const hvd::Coll& c, int version);

bool is_float8(int32_t dtype);

// Whether it is NCCL's own minimum or maximum of floats, which takes the other number for a NaN.
bool nccl_loses_nan(const hvd::Coll& c);

// NCCL's type of the elements. Only for what nccl_reduces() says yes to.
ncclDataType_t nccl_type(const hvd::Coll& c);

// NCCL's reduction for one call, scale factors included; to be kept until the call has returned.
class Reduction {
 public:
  // `aborted`: whether the communicator may be gone.
  Reduction(const hvd::Coll& c, ncclComm_t comm, int32_t size, const std::atomic<bool>& aborted);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  operator ncclRedOp_t() const { return op_; }

 private:
  ncclRedOp_t op_;
  const std::atomic<bool>& aborted_;
  ncclComm_t comm_ = nullptr;  // whose operator has to be destroyed
};
