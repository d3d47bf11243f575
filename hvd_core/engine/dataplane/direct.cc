// See direct.h.
#include "engine/dataplane/direct.h"

#include <utility>

namespace hvd::dataplane {

void DirectLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (c.counts.size() < 2 || (comm_.caps() & HVD_CAP_VECTORED)) return emit(schedule, c);
  if (is_elementwise(c.coll)) return write_list(schedule, c);
  std::vector<plugins::Collective> members;
  for (size_t i = 0; i < c.counts.size(); ++i) members.push_back(single_buffer(c, i, static_cast<size_t>(size())));
  // A collective that needs steps before or after it cannot be a member of a group.
  const bool groups = comm_.caps() & (HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED);
  if (groups && abilities_.ask(c).plain()) return schedule.group(comm_, std::move(members));
  for (const plugins::Collective& one : members) emit(schedule, one);
}

// Packs the small buffers into one. For a large buffer, the copy would cost more than a call of its own.
void DirectLowering::write_list(Schedule& schedule, const plugins::Collective& c) {
  const auto one_by_one = [&](const plugins::Collective& list) {
    for (size_t i = 0; i < list.counts.size(); ++i)
      if (list.counts[i]) emit(schedule, single_buffer(list, i, static_cast<size_t>(size())));
  };
  const Ability& ability = abilities_.ask(c);
  const uint64_t below = ability.pack_below ? ability.pack_below : UINT64_MAX;
  const Small small = small_buffers(c, below);
  if (small.buffers < 2) return one_by_one(c);
  const hvd_buf packed = packer_.scratch(schedule, small.bytes, ability.alignment);
  packer_.write_packed(schedule, c, below, packed, 1.0, 1.0, one_by_one);
}

void DirectLowering::emit(Schedule& schedule, const plugins::Collective& c) {
  const Ability& ability = abilities_.ask(c);
  if (ability.plain()) {
    schedule.collective(comm_) = c;
    return;
  }
  const auto add = [&](const plugins::Collective& one) { schedule.collective(comm_) = one; };
  if (!packer_.exceeds(c, ability.max_count)) return packer_.write_moved(schedule, c, ability.alignment, 1.0, 1.0, add);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const plugins::Collective one = single_buffer(c, i, static_cast<size_t>(size()));
    packer_.write_split(schedule, one, ability.max_count, ability.alignment, add);
  }
}

}  // namespace hvd::dataplane
