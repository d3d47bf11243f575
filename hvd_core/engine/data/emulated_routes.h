// Decides how a collective that a communicator may lack is served with what it has. Decisions only; the steps are
// written by emulated.h.
//
// Everything depends on the backend's query answers and on what all ranks know, so that all ranks decide alike. Used by
// the thread that drives the engine.
#pragma once

#include <cstdint>
#include <string>

#include "engine/data/abilities.h"

namespace hvd::data {

enum class Route {
  None,
  Native,
  Bytes,            // movement only: the same bytes as elements of a type that is served
  GatheredMove,     // broadcast, alltoall: an allgather, of which each rank takes its part
  SumAndDivide,     // AVG of 32- and 64-bit floats: SUM, then a local division
  Widened,          // a reduction in a wider type that holds every value and every result
  ExchangeReduce,   // alltoall of slices, local reduction in rank order (for allreduce: and allgather)
  GatherReduce,     // allgather, local reduction in rank order
  ThroughAllreduce  // reduce, reducescatter, barrier: from an allreduce, native or composed
};

// The type as whose elements bytes are moved.
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

class Routes {
 public:
  // `completes`: the transport above the communicator waits for what it starts, also where the communicator does not.
  explicit Routes(plugin::Communicator& comm, bool completes = false);

  // `bytes`: of one rank's input, where that is the same on all ranks; 0 where it is not.
  Route choose(int32_t coll, int32_t dtype, int32_t op, bool varying, uint64_t bytes);
  // For BROADCAST, ALLGATHER and ALLTOALL of data that is `dtype` to the caller.
  Carrier carrier(int32_t coll, int32_t dtype);
  // For the allreduce of `dtype` by `op`.
  Widening widening(int32_t dtype, int32_t op);
  // A type of which the backend itself sums; -1 without one. For a barrier.
  int32_t summed_dtype();
  Abilities& abilities() { return abilities_; }

  // "allgather + local reduction"
  std::string describe(Route route, int32_t coll, int32_t dtype, int32_t op);
  // "has int64 for broadcast and allgather only"
  std::string shortage(int32_t coll, int32_t dtype, int32_t op);

 private:
  bool exchanges_slices(int32_t dtype);
  Route reduction(int32_t coll, int32_t dtype, int32_t op, uint64_t bytes);
  Carrier same_form(int32_t coll, int32_t dtype, bool varying);

  plugin::Communicator& comm_;
  const bool completes_;
  Abilities abilities_;
};

}  // namespace hvd::data
