// How a process set moves data: writes the steps of one collective over the set's ranks into a Schedule.
//
// Implementations in host memory: DirectLowering (one communicator), EmulatedLowering (composes what a communicator
// lacks), HierarchicalLowering (within hosts and between hosts), AdasumLowering. On a device: DeviceLowering (one
// communicator, device_direct.h), BounceLowering (host memory by way of the device), StagedLowering (memory that the
// communicator cannot read), DeviceLevels (within hosts and between hosts). SetComms and SetDevice choose one of them
// for each collective. They nest: each writes its steps through the lowering below. Used by the driver.
#pragma once

#include <cstdint>

#include "engine/dataplane/schedule.h"

namespace hvd::dataplane {

class Lowering {
 public:
  virtual ~Lowering() = default;

  // Appends the steps of `c`. Ranks and root are ranks within the set, the meaning is that of hvd_coll_args, with any
  // number of buffers. `c` and its vectors may die when write_steps() returns, so a step copies the values it needs;
  // the buffers stay until the schedule is cleared. All members write the same collectives in the same order. Throws
  // plugins::BackendError (UNSUPPORTED), alike on all members, if the collective cannot be carried out.
  virtual void write_steps(Schedule& schedule, const plugins::Collective& c) = 0;

  // Whether write_steps() needs no composition for HVD_SEND or HVD_RECV of this type. Equal on all members.
  virtual bool serves_message(int32_t /*coll*/, int32_t /*dtype*/) { return false; }

  virtual int32_t rank() const = 0;  // of this process within the set
  virtual int32_t size() const = 0;
};

}  // namespace hvd::dataplane
