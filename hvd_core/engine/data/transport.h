// How a process set moves data: turns one collective over the set's ranks into the steps of a Program.
//
// Implementations: DirectTransport (one communicator), EmulatedTransport (what a communicator lacks, composed from what
// it has), StagedTransport (memory that it cannot read), HierarchicalTransport (within hosts x between hosts). They
// nest; each writes its steps through the one below. Used by the thread that drives the engine.
#pragma once

#include <cstdint>

#include "engine/data/program.h"

namespace hvd::data {

class Transport {
 public:
  virtual ~Transport() = default;

  // Appends the steps of `c`, whose ranks and root are ranks within the set and whose meaning is that of
  // hvd_coll_args, with any number of buffers. `c` and its vectors may die when plan() returns (copy what later steps
  // need); the buffers stay until the program is cleared. All members plan the same collectives in the same order.
  // Throws plugin::BackendError (UNSUPPORTED) for what cannot be done; the same on all members.
  virtual void plan(Program& program, const plugin::Collective& c) = 0;

  virtual int32_t rank() const = 0;  // of this process within the set
  virtual int32_t size() const = 0;
};

}  // namespace hvd::data
