// Which reductions NCCL has, and how they are called there. No state; any thread.
#pragma once

#include <atomic>
#include <hvd/backend.hpp>

#include "nccl_abi.h"

// The element type of collectives that only move data: broadcast, allgather and others count bytes.
inline constexpr ncclDataType_t kBytes = ncclInt8;

// Does NCCL of this version do the arithmetic of this reduction, with the results that the ABI demands? The answer is
// the same on all ranks, since all ranks have the same version (hvd-core compares).
bool nccl_reduces(const hvd::Coll& c, int version);

bool is_float8(int32_t dtype);

// Is it a minimum or maximum of floats? NCCL's own returns the other number for a NaN.
bool nccl_loses_nan(const hvd::Coll& c);

// NCCL's number of the element type. Only for a reduction that nccl_reduces() accepts.
ncclDataType_t nccl_type(const hvd::Coll& c);

// NCCL's operator for one reduction, with its scale factors. Must live until NCCL's call has returned.
class Reduction {
 public:
  // `aborted`: true if the communicator may be freed already.
  Reduction(const hvd::Coll& c, ncclComm_t comm, int32_t size, const std::atomic<bool>& aborted);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  operator ncclRedOp_t() const { return op_; }

 private:
  ncclRedOp_t op_;
  const std::atomic<bool>& aborted_;
  ncclComm_t comm_ = nullptr;  // set if op_ was created, and has to be destroyed
};
