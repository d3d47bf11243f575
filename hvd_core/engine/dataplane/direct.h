// A Lowering over one communicator that serves the collective itself.
//
// A communicator that takes lists of buffers gets the list. For another one, an ALLREDUCE, REDUCE or BROADCAST is
// packed into one buffer, except the buffers that the backend prefers alone (pack_below); packing the other collectives
// would rearrange their data, so their buffers are sent one by one, within a group if the communicator has groups. The
// limits of the query answers are kept: misaligned buffers are copied through scratch memory, and a buffer with too
// many elements is sent in several calls (except ALLTOALL, whose sizes only pairs of ranks know).
#pragma once

#include "engine/dataplane/abilities.h"
#include "engine/dataplane/lowering.h"
#include "engine/dataplane/packing.h"

namespace hvd::dataplane {

class DirectLowering final : public Lowering {
 public:
  // The communicator must outlive this object.
  explicit DirectLowering(plugins::Communicator& comm)
      : comm_(comm), abilities_(comm), packer_(comm.rank(), comm.size(), nullptr) {}

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }

 private:
  void write_list(Schedule& schedule, const plugins::Collective& c);
  void emit(Schedule& schedule, const plugins::Collective& c);

  plugins::Communicator& comm_;
  Abilities abilities_;
  const Packer packer_;
};

}  // namespace hvd::dataplane
