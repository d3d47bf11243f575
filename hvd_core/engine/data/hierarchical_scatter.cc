// Reducescatter in two levels. See hierarchical.h.
//
// Lane j serves the ranks whose local index is j modulo the number of lanes. Within a host, lane j's member gets the
// sums of all parts for those ranks. Between hosts, it gets the sums for the ranks of its own host. If a host has more
// members than there are lanes, the lane's member hands the parts out at the end.
#include <utility>

#include "engine/data/hierarchical.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

void HierarchicalTransport::reducescatter(Schedule& schedule, const plugin::Collective& c) {
  const TwoLevels levels(math_, c, static_cast<uint32_t>(ranks_), spread_);
  const uint64_t width = levels.wire_bytes;
  const size_t n = c.counts.size();
  const auto count = [&c, this](size_t i, size_t r) { return out_part(c, i, static_cast<int32_t>(r), size()); };
  const auto lane_of = [this](size_t r) { return static_cast<size_t>(layout_.local_of[r]) % lanes_; };
  uint64_t total = 0;
  for (uint64_t m : c.counts) total += m;
  if (total == 0) return;

  // The places of this rank's lane's parts between the levels: by buffer, then in host order.
  const bool mine = in_lane(lanes_);
  const size_t served = mine ? of_[my_local_].size() : 0;
  std::vector<uint64_t> at(n * served + 1, 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t d = 0; d < served; ++d)
      at[i * served + d + 1] = at[i * served + d] + count(i, static_cast<size_t>(of_[my_local_][d]));
  const uint64_t lane_total = at.back();

  std::vector<hvd_buf> data(n);  // the lane's sums of buffer i
  const bool uses_input = !local_ && in_order_ && levels.lone_copies();
  if (uses_input) {
    data = c.in;
  } else {
    // With a single lane, the first level is a REDUCE, which may use the output buffers of all ranks.
    const hvd_buf kept = schedule.scratch_buf((lanes_ == 1 ? total : lane_total) * width);
    for (size_t i = 0; mine && i < n; ++i)
      data[i] = part_of(kept, at[i * served] * width, (at[(i + 1) * served] - at[i * served]) * width);
    scatter_first(schedule, c, levels, at, kept);
  }

  // Between hosts.
  std::vector<hvd_buf> results = c.out;
  std::vector<uint64_t> result_counts(n, 0);
  const bool hands_out = neighbours_ > lanes_;
  if (mine) {
    uint64_t here = 0;
    for (size_t i = 0; i < n; ++i)
      for (int32_t r : members(my_host_))
        if (lane_of(static_cast<size_t>(r)) == my_local_) result_counts[i] += count(i, static_cast<size_t>(r));
    for (uint64_t m : result_counts) here += m;
    const bool direct = !hands_out && !levels.expands;
    const hvd_buf sums = direct ? hvd_buf{} : schedule.scratch_buf(here * width);
    std::vector<hvd_buf> sum_bufs = c.out;
    uint64_t done = 0;
    for (size_t i = 0; !direct && i < n; done += result_counts[i++])
      sum_bufs[i] = part_of(sums, done * width, result_counts[i] * width);
    auto& s = step(c, HVD_REDUCESCATTER);
    s.dtype = levels.wire;
    s.op = levels.op;
    s.postscale = levels.last_post;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t in_lane_count = at[(i + 1) * served] - at[i * served];
      if (in_lane_count == 0) continue;
      add(s, data[i], sum_bufs[i], in_lane_count * levels.per);
      uint64_t* row = add_row(s.out_counts, hosts_);
      for (int32_t r : of_[my_local_])
        row[layout_.host_of[static_cast<size_t>(r)]] += count(i, static_cast<size_t>(r)) * levels.per;
    }
    cross_->write_steps(schedule, s);
    for (size_t i = 0; i < n; ++i) {
      results[i] = sum_bufs[i];
      if (result_counts[i])
        results[i] = finish(schedule, levels, sum_bufs[i], result_counts[i], hands_out ? hvd_buf{} : c.out[i]);
    }
  }
  if (!hands_out) return;

  auto& s = step(c, HVD_ALLTOALL);
  for (size_t i = 0; i < n; ++i) {
    add(s, mine ? results[i] : part_of(c.out[i], 0, 0), c.out[i], result_counts[i]);
    uint64_t* give = add_row(s.in_counts, neighbours_);
    for (size_t m = 0; mine && m < neighbours_; ++m)
      if (m % lanes_ == my_local_) give[m] = count(i, static_cast<size_t>(members(my_host_)[m]));
    add_row(s.out_counts, neighbours_)[my_local_ % lanes_] = count(i, static_cast<size_t>(layout_.me));
  }
  local_->write_steps(schedule, s);
}

// The first level. `at`: the places of the parts for this rank's lane within `kept`, in elements.
void HierarchicalTransport::scatter_first(Schedule& schedule, const plugin::Collective& c, const TwoLevels& levels,
                                          const std::vector<uint64_t>& at, hvd_buf kept) {
  const uint64_t width = levels.wire_bytes;
  const size_t n = c.counts.size();
  const bool mine = in_lane(lanes_);
  const size_t served = mine ? of_[my_local_].size() : 0;
  const auto count = [&c, this](size_t i, size_t r) { return out_part(c, i, static_cast<int32_t>(r), size()); };
  if (!local_) {
    // This rank is alone on its host, so there is one lane, which serves all ranks.
    std::vector<uint64_t> counts;
    for (size_t i = 0; i < n; ++i)
      for (size_t r = 0; r < ranks_; ++r) counts.push_back(count(i, r));
    schedule.compute([this, levels, at, kept, width, counts = std::move(counts), in = c.in,
                      bytes = types::dtype_bytes(c.dtype)](Schedule&) {
      for (size_t i = 0; i < in.size(); ++i) {
        const char* from = address(in[i]);
        for (size_t r = 0; r < ranks_; ++r) {
          const uint64_t m = counts[i * ranks_ + r];
          levels.lone(from, m, address(kept) + at[i * ranks_ + place_[r]] * width);
          from += m * bytes;
        }
      }
    });
    return;
  }
  std::vector<hvd_buf> in = c.in;
  if (levels.expands) {
    uint64_t total = 0;
    for (uint64_t m : c.counts) total += m;
    const hvd_buf all = schedule.scratch_buf(total * width);
    uint64_t done = 0;
    for (size_t i = 0; i < n; done += c.counts[i++]) in[i] = part_of(all, done * width, c.counts[i] * width);
    schedule.compute([levels, from = c.in, in, counts = c.counts](Schedule&) {
      for (size_t i = 0; i < counts.size(); ++i)
        if (counts[i]) levels.expand(address(from[i]), counts[i], address(in[i]));
    });
  }
  // The parts of a buffer are in rank order. Consecutive parts become one buffer of the step if their lanes rise, or if
  // one lane keeps them side by side.
  auto& s = step(c, lanes_ == 1 ? HVD_REDUCE : HVD_REDUCESCATTER);
  s.dtype = levels.wire;
  s.op = levels.op;
  s.prescale = levels.first_pre;
  s.postscale = levels.first_post;
  std::vector<uint64_t> row(lanes_);
  for (size_t i = 0; i < n; ++i) {
    uint64_t from = 0;
    for (size_t r = 0; r < ranks_;) {
      row.assign(lanes_, 0);
      uint64_t length = 0;
      hvd_buf out = part_of(kept, 0, 0);
      for (bool first = true; r < ranks_; ++r, first = false) {
        const auto lane = static_cast<size_t>(layout_.local_of[r]) % lanes_;
        if (!first) {
          const auto before = static_cast<size_t>(layout_.local_of[r - 1]) % lanes_;
          if (lane < before || (lane == before && place_[r] != place_[r - 1] + 1)) break;
        }
        const uint64_t m = count(i, r);
        if (mine && lane == my_local_) {
          if (out.bytes == 0) out = part_of(kept, at[i * served + place_[r]] * width, 0);
          out.bytes += m * width;
        }
        row[lane] += m * levels.per;
        length += m;
      }
      if (length == 0) continue;
      if (lanes_ == 1 && !mine) out = part_of(kept, 0, length * width);
      add(s, part_of(in[i], from * width, length * width), out, length * levels.per);
      if (lanes_ > 1) std::copy(row.begin(), row.end(), add_row(s.out_counts, neighbours_));
      from += length;
    }
  }
  local_->write_steps(schedule, s);
}

}  // namespace hvd::data
