// A Lowering over one communicator that serves the collective itself.
//
// A communicator that takes lists of buffers gets the list. For another one, an ALLREDUCE, REDUCE or BROADCAST is
// packed into one buffer, except the buffers that the backend prefers alone (pack_below); packing the other collectives
// would rearrange their data, so their buffers are sent one by one, within a group if the communicator has groups. The
// limits of the query answers are kept: misaligned buffers are copied through scratch memory, and a buffer with too
// many elements is sent in several calls (except ALLTOALL, whose sizes only pairs of ranks know).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/dataplane/abilities.h"
#include "engine/dataplane/lowering.h"

namespace hvd::dataplane {

class DirectLowering final : public Lowering {
 public:
  // The communicator must outlive this object.
  explicit DirectLowering(plugins::Communicator& comm) : comm_(comm), abilities_(comm) {}

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  // Writes several collectives in as few groups as the communicator's group capability allows, one by one without that
  // capability. Each has at most one buffer unless the communicator takes lists.
  void write_group(Schedule& schedule, std::vector<plugins::Collective> members);
  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }

 private:
  void write_list(Schedule& schedule, const plugins::Collective& c);
  void write_packed(Schedule& schedule, const plugins::Collective& c);
  void write_each(Schedule& schedule, const plugins::Collective& c);
  void emit(Schedule& schedule, const plugins::Collective& c);
  void emit_aligned(Schedule& schedule, const plugins::Collective& c, uint32_t alignment);
  bool oversized(const plugins::Collective& c, uint64_t max_count) const;
  void split(Schedule& schedule, const plugins::Collective& c, size_t i, const Ability& ability);

  plugins::Communicator& comm_;
  Abilities abilities_;
};

}  // namespace hvd::dataplane
