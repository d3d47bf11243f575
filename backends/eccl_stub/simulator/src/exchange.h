// Moves bytes between this rank and several peers at once, in both directions. On a stream's thread, one exchange of a
// communicator at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm.h"

namespace sim {

// Goes before what a rank sends to a peer for an operation: what the sender thinks the operation is.
struct Header {
  uint32_t kind;  // Operation::Kind
  uint32_t type;  // ecclDataType_t
  uint32_t op;    // ecclRedOp_t, or one number for all scaled sums
  int32_t root;
  uint64_t count;
  double factor;  // the sender's own; not compared

  bool agrees(const Header& other) const;
};

struct Piece {
  char* data;
  size_t bytes;
  const Header* expected = nullptr;  // the piece is a Header, which must agree with this one
};

// Everything that goes to one peer and comes from it, in order.
struct Leg {
  int peer;
  std::vector<Piece> out, in;
};

// Returns when all of it has moved. Throws Failure: a peer went away, does something else, or no byte has moved for too
// long; or the communicator was aborted.
void transfer(Comm& comm, const std::vector<Leg>& legs);

}  // namespace sim
