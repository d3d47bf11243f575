// Decides how a collective that a communicator may lack is composed from the collectives, types and reductions that it
// has. EmulatedLowering (emulated.h) writes the steps.
//
// A decision depends only on the backend's query answers and on values that all ranks know, so that all ranks decide
// alike. Used by the driver.
#pragma once

#include <cstdint>
#include <string>

#include "engine/dataplane/abilities.h"

namespace hvd::dataplane {

enum class Composition {
  None,
  Native,
  Bytes,            // movement only: the same bytes as elements of a type that is served
  GatheredMove,     // broadcast, alltoall, barrier: an allgather, from which each rank takes its part
  SumAndDivide,     // AVG of 32- and 64-bit floats: SUM, then a local division
  Widened,          // a reduction in a wider type that holds every value and every result
  ExchangeReduce,   // alltoall of slices, local reduction in rank order (for allreduce: and allgather)
  GatherReduce,     // allgather, local reduction in rank order
  ThroughAllreduce  // reduce, reducescatter, barrier: from an allreduce, native or composed
};

// The type as which bytes are moved.
struct Carrier {
  int32_t dtype = -1;
  uint64_t width = 0;
  bool varying = true;  // sizes may differ by rank; otherwise parts are padded to the longest
  explicit operator bool() const { return dtype >= 0; }
};

struct Widening {
  int32_t dtype = -1, op = 0;
  explicit operator bool() const { return dtype >= 0; }
};

class Compositions {
 public:
  // `completes`: the lowering above the communicator waits for each collective, also if the communicator (STREAM) does
  // not.
  explicit Compositions(plugins::Communicator& comm, bool completes = false);

  // `bytes`: the size of one rank's input if it is equal on all ranks, else 0.
  Composition choose(int32_t coll, int32_t dtype, int32_t op, bool varying, uint64_t bytes);
  // For BROADCAST, ALLGATHER and ALLTOALL of elements of `dtype`.
  Carrier carrier(int32_t coll, int32_t dtype);
  // For the allreduce of `dtype` by `op`.
  Widening widening(int32_t dtype, int32_t op);
  // A type whose sums the backend serves, for a barrier; -1 without one.
  int32_t summed_dtype();
  Abilities& abilities() { return abilities_; }

  // "allgather + local reduction"
  std::string describe(Composition composition, int32_t coll, int32_t dtype, int32_t op);
  // "has int64 for broadcast and allgather only"
  std::string shortage(int32_t coll, int32_t dtype, int32_t op);

 private:
  bool exchanges_slices(int32_t dtype);
  Composition reduction(int32_t coll, int32_t dtype, int32_t op, uint64_t bytes);
  Carrier best_carrier(int32_t coll, int32_t dtype, bool varying);

  plugins::Communicator& comm_;
  const bool completes_;
  Abilities abilities_;
};

}  // namespace hvd::dataplane
