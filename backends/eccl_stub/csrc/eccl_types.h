// What ECCL can reduce, and how a reduction is said in its words. Used by eccl_comm.cc.
#pragma once

#include <hvd/backend.hpp>

#include "eccl_api.h"

// Moving data needs no element type: broadcast, allgather and the like go as this many of these.
inline constexpr ecclDataType_t kBytes = ecclInt8;

// Whether ECCL can do the arithmetic of a reduction itself. A pure function of what is the same on all ranks.
bool eccl_reduces(const hvd::Coll& c);

// The vendor's type of the elements. Only for what eccl_reduces() says yes to.
ecclDataType_t eccl_type(const hvd::Coll& c);

// The vendor's reduction for one call, scale factors included; to be kept until the call has returned.
class Reduction {
 public:
  Reduction(const hvd::Coll& c, ecclComm_t comm, int32_t size);
  ~Reduction();
  Reduction(const Reduction&) = delete;
  operator ecclRedOp_t() const { return op_; }

 private:
  ecclRedOp_t op_;
  ecclComm_t comm_ = nullptr;  // whose operator has to be destroyed
};
