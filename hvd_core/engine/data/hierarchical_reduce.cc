// Allreduce and reduce in two levels: within the hosts, between them, and back. See hierarchical.h.
//
// Between the levels, each lane holds its slice of all tensors as one buffer, so the cross transport always gets one
// buffer. For a single tensor that is not reduced in place, that buffer is part of the output.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/data/hierarchical.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

namespace {

// The first chunk and the last one have nothing beside them, which is 1/16 of the work then. More chunks do not pay.
constexpr uint64_t kMostChunks = 16;

uint64_t total_bytes(const plugin::Collective& c) {
  uint64_t n = 0;
  for (uint64_t count : c.counts) n += count;
  return n * types::dtype_bytes(c.dtype);
}

// `c` in `number` collectives that follow one another in its list of buffers, of about equal size.
std::vector<plugin::Collective> chunks_of(const plugin::Collective& c, uint64_t number) {
  const Slices parts(c.counts, number);
  const uint64_t width = types::dtype_bytes(c.dtype);
  std::vector<plugin::Collective> chunks(number);
  for (size_t k = 0; k < number; ++k) {
    copy_settings(chunks[k], c);
    for (size_t i = 0; i < c.counts.size(); ++i) {
      const uint64_t n = parts.count(i, k);
      if (n == 0) continue;
      chunks[k].in.push_back(part_of(c.in[i], parts.start(i, k) * width, n * width));
      chunks[k].out.push_back(part_of(c.out[i], parts.start(i, k) * width, n * width));
      chunks[k].counts.push_back(n);
    }
  }
  return chunks;
}

}  // namespace

// Reduces within the host. Returns the buffer that then holds this rank's slice in the wire type: `to`, or the input
// itself if the rank is alone and nothing changes. `to` has the length of the slice; with a single lane, every rank
// passes a buffer of full length.
hvd_buf HierarchicalTransport::first_level(Schedule& schedule, const plugin::Collective& c, const TwoLevels& levels,
                                           const Slices& slices, hvd_buf to) {
  const uint64_t width = levels.wire_bytes;
  if (!local_) {
    if (levels.lone_copies() && c.in.size() == 1) return c.in[0];
    schedule.compute([levels, to, width, in = c.in, counts = c.counts](Schedule&) {
      char* at = address(to);
      for (size_t i = 0; i < counts.size(); ++i) {
        levels.lone(address(in[i]), counts[i], at);
        at += counts[i] * width;
      }
    });
    return to;
  }
  plugin::Collective source;  // the expanded input
  const Slices* reduced = &slices;
  Slices packed({slices.total()}, slices.lanes());
  if (levels.expands) {
    const hvd_buf all = schedule.scratch_buf(slices.total() * width);
    schedule.compute([levels, all, width, in = c.in, counts = c.counts](Schedule&) {
      char* at = address(all);
      for (size_t i = 0; i < counts.size(); ++i) {
        levels.expand(address(in[i]), counts[i], at);
        at += counts[i] * width;
      }
    });
    source.in = {all};
    source.counts = {slices.total()};
    reduced = &packed;
  }
  const auto& in = levels.expands ? source.in : c.in;
  const auto& counts = levels.expands ? source.counts : c.counts;

  auto& s = step(c, slices.lanes() == 1 ? HVD_REDUCE : HVD_REDUCESCATTER);
  s.dtype = levels.wire;
  s.op = levels.op;
  s.prescale = levels.first_pre;
  s.postscale = levels.first_post;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (slices.lanes() == 1) {
      add(s, in[i], part_of(to, reduced->offset(i) * width, counts[i] * width), counts[i] * levels.per);
      continue;
    }
    const uint64_t mine = in_lane(slices.lanes()) ? reduced->count(i, my_local_) : 0;
    add(s, in[i], part_of(to, mine ? reduced->position(i, my_local_) * width : 0, mine * width),
        counts[i] * levels.per);
    uint64_t* row = add_row(s.out_counts, neighbours_);
    for (size_t lane = 0; lane < slices.lanes(); ++lane) row[lane] = reduced->count(i, lane) * levels.per;
  }
  local_->write_steps(schedule, s);
  return to;
}

// Writes the computation after the last level, and returns the buffer of the result. `out` (n elements of the tensor's
// type) takes results that cannot replace the sums; if its base is null, scratch memory does.
hvd_buf HierarchicalTransport::finish(Schedule& schedule, const TwoLevels& levels, hvd_buf sums, uint64_t n,
                                      hvd_buf out) {
  if (!levels.finishes) return sums;
  if (!levels.expands)
    out = sums;
  else if (!out.base)
    out = schedule.scratch_buf(n * levels.bytes());
  schedule.compute([levels, sums, n, out](Schedule&) { levels.finish(address(sums), n, address(out)); });
  return out;
}

// An allreduce of one list of buffers. Its three parts may be written to different schedules.
struct HierarchicalTransport::Reduction {
  const plugin::Collective& c;
  const TwoLevels levels;
  const Slices slices;
  hvd_buf in_out{};      // this rank's slice of the output, if the list has one buffer
  hvd_buf to{}, data{};  // the slice in the wire type: where the sums go, and where the first level has left it
  hvd_buf result{};      // the complete slice
};

void HierarchicalTransport::within_hosts(Schedule& schedule, Reduction& r) {
  const plugin::Collective& c = r.c;
  const uint64_t width = r.levels.wire_bytes, n = r.slices.size(my_local_);
  const bool one_lane = r.slices.lanes() == 1, single = c.counts.size() == 1;
  if (single)
    r.in_out = part_of(c.out[0], r.slices.begin(one_lane ? 0 : my_local_) * r.levels.bytes(), n * r.levels.bytes());
  // A REDUCE may work in place, a REDUCESCATTER may not.
  const bool direct = single && !r.levels.expands && (one_lane || !same_place(c.in[0], c.out[0]));
  if (direct)
    r.to = one_lane ? c.out[0] : r.in_out;
  else
    r.to = schedule.scratch_buf((one_lane ? r.slices.total() : n) * width);
  r.data = first_level(schedule, c, r.levels, r.slices, r.to);
}

void HierarchicalTransport::between_hosts(Schedule& schedule, Reduction& r) {
  const uint64_t n = r.slices.size(my_local_);
  r.result = r.to;
  if (!in_lane(r.slices.lanes()) || n == 0) return;
  auto& s = step(r.c, HVD_ALLREDUCE);
  s.dtype = r.levels.wire;
  s.op = r.levels.op;
  s.postscale = r.levels.last_post;
  add(s, r.data, r.to, n * r.levels.per);
  cross_->write_steps(schedule, s);
  r.result = finish(schedule, r.levels, r.to, n, r.in_out);
}

void HierarchicalTransport::allreduce(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t bytes = total_bytes(c);
  if (bytes == 0) return;
  const uint64_t chunk = settings_.chunk_bytes;
  if (chunk > 0 && bytes >= 2 * chunk && !c.stream)
    return allreduce_in_chunks(schedule, c, std::min(bytes / chunk, kMostChunks));
  Reduction r{c, {math_, c, static_cast<uint32_t>(ranks_), spread_}, {c.counts, lanes_for(bytes)}};
  within_hosts(schedule, r);
  between_hosts(schedule, r);
  spread(schedule, c, r.slices, r.result);
}

// While chunk k is between the hosts, chunk k + 1 is reduced within them. All members write the same order of
// collectives to each communicator: within the hosts, the reduction of a chunk comes before the result of the one
// before it.
void HierarchicalTransport::allreduce_in_chunks(Schedule& schedule, const plugin::Collective& c, uint64_t number) {
  // The first collectives of a communicator may wait for other ranks, so they are not overlapped.
  const bool overlap = std::exchange(connected_, true);
  std::vector<plugin::Collective> chunks = chunks_of(c, number);
  std::vector<Reduction> reductions;
  reductions.reserve(chunks.size());
  for (plugin::Collective& chunk : chunks) {
    chunk.overlapped = overlap;
    chunk.siblings = static_cast<uint32_t>(number);
    reductions.push_back(
        {chunk, {math_, chunk, static_cast<uint32_t>(ranks_), spread_}, {chunk.counts, lanes_for(total_bytes(chunk))}});
  }
  // A rank that works on one level only has nothing to overlap.
  Schedule *inside = &schedule, *outside = &schedule;
  const bool apart = overlap && local_ && cross_;
  if (apart) {
    const auto strands = schedule.strands(settings_.phase.c_str());
    inside = strands[0], outside = strands[1];
  }
  // How many chunks have been reduced on each level.
  struct Counts {
    size_t inside = 0, outside = 0;
  };
  const auto done = std::make_shared<Counts>();
  const auto write_last_part = [&](size_t k) {
    if (apart) inside->await_other_strand([done, k] { return done->outside > k; });
    spread(*inside, reductions[k].c, reductions[k].slices, reductions[k].result);
  };
  for (size_t k = 0; k < reductions.size(); ++k) {
    within_hosts(*inside, reductions[k]);
    if (apart) inside->compute([done](Schedule&) { ++done->inside; });
    if (apart) outside->await_other_strand([done, k] { return done->inside > k; });
    between_hosts(*outside, reductions[k]);
    if (apart) outside->compute([done](Schedule&) { ++done->outside; });
    if (k > 0) write_last_part(k - 1);
  }
  write_last_part(reductions.size() - 1);
}

// Distributes the complete slices of the lanes to all ranks of the host.
void HierarchicalTransport::spread(Schedule& schedule, const plugin::Collective& c, const Slices& slices,
                                   hvd_buf result) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const bool mine = in_lane(slices.lanes());
  if (!local_) {
    if (c.counts.size() == 1 && same_place(result, c.out[0])) return;
    schedule.compute([result, width, out = c.out, counts = c.counts](Schedule&) {
      const char* at = address(result);
      for (size_t i = 0; i < counts.size(); ++i) {
        if (counts[i]) std::memcpy(address(out[i]), at, counts[i] * width);
        at += counts[i] * width;
      }
    });
    return;
  }
  auto& s = step(c, slices.lanes() == 1 ? HVD_BROADCAST : HVD_ALLGATHER);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.counts[i] == 0) continue;
    if (slices.lanes() == 1) {
      add(s, mine ? part_of(result, slices.offset(i) * width, c.counts[i] * width) : c.out[i], c.out[i], c.counts[i]);
      continue;
    }
    const uint64_t n = mine ? slices.count(i, my_local_) : 0;
    add(s, n ? part_of(result, slices.position(i, my_local_) * width, n * width) : part_of(c.out[i], 0, 0), c.out[i],
        n);
    uint64_t* row = add_row(s.out_counts, neighbours_);
    for (size_t lane = 0; lane < slices.lanes(); ++lane) row[lane] = slices.count(i, lane);
  }
  local_->write_steps(schedule, s);
}

void HierarchicalTransport::reduce(Schedule& schedule, const plugin::Collective& c) {
  const TwoLevels levels(math_, c, static_cast<uint32_t>(ranks_), spread_);
  const Slices slices(c.counts, lanes_for(total_bytes(c)));
  if (slices.total() == 0) return;
  const auto root = static_cast<size_t>(c.root);
  const auto root_host = static_cast<size_t>(layout_.host_of[root]);
  const auto root_local = static_cast<size_t>(layout_.local_of[root]);
  const uint64_t width = types::dtype_bytes(c.dtype);
  const bool mine = in_lane(slices.lanes()), here = root_host == my_host_;
  const uint64_t n = mine ? slices.size(my_local_) : 0;

  // Only the root has an output, so all ranks use scratch memory.
  const hvd_buf to = schedule.scratch_buf((slices.lanes() == 1 ? slices.total() : n) * levels.wire_bytes);
  const hvd_buf data = first_level(schedule, c, levels, slices, to);
  hvd_buf result = to;
  if (n > 0) {
    auto& s = step(c, HVD_REDUCE);
    s.root = static_cast<int32_t>(root_host);
    s.dtype = levels.wire;
    s.op = levels.op;
    s.postscale = levels.last_post;
    add(s, data, to, n * levels.per);
    cross_->write_steps(schedule, s);
    if (here) result = finish(schedule, levels, to, n, {});
  }
  if (!here) return;
  if (!local_) return spread(schedule, c, slices, result);  // the root is alone here
  const bool is_root = layout_.me == c.root;
  auto& s = step(c, HVD_ALLTOALL);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.counts[i] == 0) continue;
    const uint64_t give = mine ? slices.count(i, my_local_) : 0;
    add(s, give ? part_of(result, slices.position(i, my_local_) * width, give * width) : part_of(to, 0, 0),
        is_root ? c.out[i] : part_of(to, 0, 0), give);
    add_row(s.in_counts, neighbours_)[root_local] = give;
    uint64_t* row = add_row(s.out_counts, neighbours_);
    for (size_t lane = 0; is_root && lane < slices.lanes(); ++lane) row[lane] = slices.count(i, lane);
  }
  local_->write_steps(schedule, s);
}

}  // namespace hvd::data
