// Which reductions ECCL has, and how they are called there. Used by eccl_comm.cc.
#pragma once

#include <hvd/backend.hpp>

#include "eccl_api.h"

// The element type of collectives that only move data: broadcast, allgather and others count bytes.
inline constexpr ecclDataType_t kBytes = ecclInt8;

// Can ECCL do the arithmetic of this reduction? The answer depends only on arguments that are equal on all ranks.
bool eccl_reduces(const hvd::Coll& c);

// The vendor's number of the element type. Only for a reduction that eccl_reduces() accepts.
ecclDataType_t eccl_type(const hvd::Coll& c);

// The vendor's operator for one reduction, with its scale factors. Must live until the vendor's call has returned.
class Reduction {
 public:
  Reduction(const hvd::Coll& c, ecclComm_t comm, int32_t size);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  operator ecclRedOp_t() const { return op_; }

 private:
  ecclRedOp_t op_;
  ecclComm_t comm_ = nullptr;  // set if op_ was created, and has to be destroyed
};
