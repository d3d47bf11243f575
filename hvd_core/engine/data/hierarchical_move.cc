// Broadcast and allgather in two levels. See hierarchical.h.
//
// All parts are sent from the input or output buffers directly, without scratch memory. Parts that are not contiguous
// are several buffers of one step, even if only one rank contributes to each.
#include <utility>

#include "engine/data/hierarchical.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

void HierarchicalTransport::broadcast(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  uint64_t total = 0;
  for (uint64_t m : c.counts) total += m;
  if (total == 0) return;
  const Slices slices(c.counts, lanes_for(total * width));
  const auto root_host = layout_.host_of[static_cast<size_t>(c.root)];
  const auto root_local = layout_.local_of[static_cast<size_t>(c.root)];
  const bool one_lane = slices.lanes() == 1, here = root_host == layout_.my_host(), is_root = layout_.me == c.root;
  bool delivered = false;  // the output of the root is written
  // The buffer that this rank forwards; the root may have no output.
  const auto held = [&](size_t i) { return is_root && (!delivered || !c.out[i].base) ? c.in[i] : c.out[i]; };
  const auto within = [&](int32_t root) {
    if (!local_) return;
    auto& s = step(c, HVD_BROADCAST);
    s.root = root;
    for (size_t i = 0; i < c.counts.size(); ++i)
      if (c.counts[i]) add(s, held(i), c.out[i], c.counts[i]);
    local_->write_steps(schedule, s);
    delivered = true;
  };
  const auto between = [&] {
    if (!in_lane(slices.lanes()) || slices.size(my_local_) == 0) return;
    auto& s = step(c, HVD_BROADCAST);
    s.root = root_host;
    for (size_t i = 0; i < c.counts.size(); ++i) {
      const uint64_t m = slices.count(i, my_local_) * width, at = slices.start(i, my_local_) * width;
      if (m) add(s, part_of(held(i), at, m), part_of(is_root && !c.out[i].base ? c.in[i] : c.out[i], at, m), m / width);
    }
    cross_->write_steps(schedule, s);
    delivered = true;
  };

  if (one_lane) {
    // A root in the lane sends to the other hosts first, because that takes longer.
    const bool first = here && root_local != 0;
    if (first) within(root_local);
    between();
    if (!first) within(0);
    return;
  }
  if (here) within(root_local);
  between();
  if (here) return;
  auto& s = step(c, HVD_ALLGATHER);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.counts[i] == 0) continue;
    const uint64_t m = slices.count(i, my_local_);
    add(s, part_of(c.out[i], slices.start(i, my_local_) * width, m * width), c.out[i], m);
    uint64_t* row = add_row(s.out_counts, neighbours_);
    for (size_t lane = 0; lane < slices.lanes(); ++lane) row[lane] = slices.count(i, lane);
  }
  local_->write_steps(schedule, s);
}

// First within each host. Then between hosts: each lane carries a slice of its host's parts. Then within each host
// again, for the parts from other hosts.
void HierarchicalTransport::allgather(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const size_t n = c.counts.size();
  const auto me = static_cast<size_t>(layout_.me);
  // The first element of each rank's part of buffer i, and at [ranks_] the end of the last part.
  std::vector<uint64_t> at(n * (ranks_ + 1));
  uint64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    uint64_t* row = at.data() + i * (ranks_ + 1);
    for (size_t r = 0; r < ranks_; ++r) row[r + 1] = row[r] + out_part(c, i, static_cast<int32_t>(r), size());
    total += row[ranks_];
  }
  if (total == 0) return;
  const auto begin = [&](size_t i, size_t r) { return at[i * (ranks_ + 1) + r]; };
  const auto length = [&](size_t i, const Run& run) { return begin(i, run.rank + run.length) - begin(i, run.rank); };
  const auto place = [&](size_t i, uint64_t from, uint64_t m) { return part_of(c.out[i], from * width, m * width); };
  // This rank's own part. In place, it lies at its place in the output.
  const auto own = [&](size_t i) {
    return same_place(c.in[i], c.out[i]) ? place(i, begin(i, me), begin(i, me + 1) - begin(i, me)) : c.in[i];
  };

  if (local_) {
    auto& s = step(c, HVD_ALLGATHER);
    for (size_t i = 0; i < n; ++i) {
      for (const Run& run : runs_[my_host_]) {
        if (length(i, run) == 0) continue;
        const bool inside = me >= run.rank && me < run.rank + run.length;
        const hvd_buf out = place(i, begin(i, run.rank), length(i, run));
        add(s, inside ? own(i) : part_of(out, 0, 0), out, inside ? begin(i, me + 1) - begin(i, me) : 0);
        uint64_t* row = add_row(s.out_counts, neighbours_);
        for (size_t r = run.rank; r < run.rank + run.length; ++r)
          row[layout_.local_of[r]] = begin(i, r + 1) - begin(i, r);
      }
    }
    if (!s.counts.empty()) local_->write_steps(schedule, s);
  }

  // The slices of each host's runs.
  const size_t lanes = lanes_for(total * width);
  std::vector<Slices> slices;
  slices.reserve(hosts_);
  for (size_t h = 0; h < hosts_; ++h) {
    std::vector<uint64_t> lengths;
    for (size_t i = 0; i < n; ++i)
      for (const Run& run : runs_[h]) lengths.push_back(length(i, run));
    slices.emplace_back(lengths, lanes);
  }
  if (in_lane(lanes)) {
    auto& s = step(c, HVD_ALLGATHER);
    for (size_t h = 0; h < hosts_; ++h) {
      for (size_t i = 0, part = 0; i < n; ++i) {
        for (const Run& run : runs_[h]) {
          const uint64_t m = slices[h].count(part, my_local_), from = slices[h].start(part, my_local_);
          ++part;
          if (m == 0) continue;
          const hvd_buf out = place(i, begin(i, run.rank) + from, m);
          // A rank alone on its host has not yet moved its own part, which is the whole run.
          add(s, h == my_host_ && !local_ ? own(i) : out, out, h == my_host_ ? m : 0);
          add_row(s.out_counts, hosts_)[h] = m;
        }
      }
    }
    if (!s.counts.empty()) cross_->write_steps(schedule, s);
  }

  if (!local_) return;
  auto& s = step(c, lanes == 1 ? HVD_BROADCAST : HVD_ALLGATHER);
  for (size_t h = 0; h < hosts_; ++h) {
    if (h == my_host_) continue;
    for (size_t i = 0, part = 0; i < n; ++i) {
      for (const Run& run : runs_[h]) {
        const size_t p = part++;
        const uint64_t m = length(i, run);
        if (m == 0) continue;
        const hvd_buf out = place(i, begin(i, run.rank), m);
        if (lanes == 1) {
          add(s, out, out, m);
          continue;
        }
        const uint64_t mine = slices[h].count(p, my_local_);
        add(s, mine ? part_of(out, slices[h].start(p, my_local_) * width, mine * width) : part_of(out, 0, 0), out,
            mine);
        uint64_t* row = add_row(s.out_counts, neighbours_);
        for (size_t lane = 0; lane < lanes; ++lane) row[lane] = slices[h].count(p, lane);
      }
    }
  }
  if (!s.counts.empty()) local_->write_steps(schedule, s);
}

}  // namespace hvd::data
