// One operation as it was asked for: checked, its memory found, not yet done.
#pragma once

#include <eccl.h>

#include <vector>

#include "arithmetic.h"
#include "comm.h"
#include "memory.h"

namespace sim {

struct Operation {
  enum class Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kGather, kScatter, kMessage };

  Kind kind;
  ecclDataType_t type;
  size_t count;           // elements, as the caller gave it
  int root = -1;          // or the peer of a message
  bool outgoing = false;  // of a message
  Reduction how{};
  Scalar scalar{};      // where `how` is scaled
  Span send{}, recv{};  // empty where this rank has nothing there
};

// "AllReduce"
const char* describe(Operation::Kind kind);

// Carries out operations that were launched together: collectives one after the other, then messages all at once. On a
// stream's thread, within Comm::run. Throws Failure.
void perform(Comm& comm, const std::vector<Operation>& batch);

}  // namespace sim
