// Moves bytes between this rank and several peers at once, in both directions. On a stream's thread, one exchange of a
// communicator at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm.h"

namespace sim {

// The first message from a rank to a peer in an operation: the operation as the sender knows it.
struct Header {
  uint32_t kind;  // Operation::Kind
  uint32_t type;  // ecclDataType_t
  uint32_t op;    // ecclRedOp_t, or one number for all scaled sums
  int32_t root;
  uint64_t count;
  double factor;  // the sender's own; not compared

  bool agrees(const Header& other) const;
};

struct Chunk {
  char* data;
  size_t bytes;
  const Header* expected = nullptr;  // the chunk is a Header, which must agree with this one
};

// Everything that goes to one peer and comes from it, in order.
struct Leg {
  int peer;
  std::vector<Chunk> out, in;
};

// Returns when all of it has moved. Throws Failure: a peer went away, does something else, or no byte has moved for too
// long; or the communicator was aborted.
void transfer(Comm& comm, const std::vector<Leg>& legs);

}  // namespace sim
