// A Transport over one communicator that can do what it is asked for. Lists of buffers go down as they are where the
// communicator takes lists; otherwise as one packed buffer, without those that the backend rather has alone, or one by
// one (within a group where it has groups) where packing would need the data rearranged. What its query says of
// alignment and sizes is respected: misaligned buffers go through scratch memory, oversized ones in several calls
// (except ALLTOALL, whose sizes only pairs of ranks know).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data/abilities.h"
#include "engine/data/transport.h"

namespace hvd::data {

class DirectTransport final : public Transport {
 public:
  // The communicator must outlive this object.
  explicit DirectTransport(plugin::Communicator& comm) : comm_(comm), abilities_(comm) {}

  void plan(Program& program, const plugin::Collective& c) override;
  // Several collectives, each of at most one buffer unless the communicator takes lists, in as few groups as the
  // communicator's group capability allows; one by one where it has none.
  void plan_group(Program& program, std::vector<plugin::Collective> members);
  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }

 private:
  void plan_list(Program& program, const plugin::Collective& c);
  void plan_packed(Program& program, const plugin::Collective& c);
  void plan_each(Program& program, const plugin::Collective& c);
  void emit(Program& program, const plugin::Collective& c);
  void emit_aligned(Program& program, const plugin::Collective& c, uint32_t alignment);
  bool oversized(const plugin::Collective& c, uint64_t max_count) const;
  void split(Program& program, const plugin::Collective& c, size_t i, const Ability& ability);

  plugin::Communicator& comm_;
  Abilities abilities_;
};

}  // namespace hvd::data
