// See hierarchical.h.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/hierarchical.h"
#include "engine/dataplane/packing.h"
#include "engine/plugins/errors.h"

namespace hvd::dataplane {

namespace {

constexpr uint64_t kTile = 1024;  // elements worked on at a time, so that they stay in the first-level cache

// memcpy, because a tensor need not be aligned.
template <class T>
void split(const void* in, uint64_t n, T divisor, void* to) {
  const auto* from = static_cast<const char*>(in);
  auto* pairs = static_cast<char*>(to);
  for (uint64_t i = 0; i < n; ++i, from += sizeof(T), pairs += 2 * sizeof(T)) {
    T v;
    std::memcpy(&v, from, sizeof v);
    const T pair[2] = {static_cast<T>(v / divisor), static_cast<T>(v % divisor)};
    std::memcpy(pairs, pair, sizeof pair);
  }
}

template <class T, class Wide>
void join(const void* sums, uint64_t n, T divisor, void* out) {
  const auto* pairs = static_cast<const char*>(sums);
  auto* to = static_cast<char*>(out);
  for (uint64_t i = 0; i < n; ++i, to += sizeof(T), pairs += 2 * sizeof(T)) {
    T pair[2];
    std::memcpy(pair, pairs, sizeof pair);
    const auto v = static_cast<T>((Wide{pair[0]} * Wide{divisor} + Wide{pair[1]}) / Wide{divisor});
    std::memcpy(to, &v, sizeof v);
  }
}

}  // namespace

TwoLevels::TwoLevels(const HostMath& math, const plugins::Collective& c, uint32_t ranks, const Hosts& hosts)
    : op(c.op), wire(c.dtype), math_(&math), dtype_(c.dtype), ranks_(ranks) {
  const double pre = c.prescale == 0.0 ? 1.0 : c.prescale, post = c.postscale == 0.0 ? 1.0 : c.postscale;
  first_pre = pre;
  last_post = post;
  if (op == HVD_AVG && base::is_half(dtype_)) {
    first_post = static_cast<double>(hosts.here) / hosts.most;
    last_post = static_cast<double>(hosts.most) * hosts.number / ranks * post;
  } else if (op == HVD_AVG) {
    if (!base::is_reducible(dtype_, op))
      throw plugins::BackendError(
          HVD_E_INVALID, 0, 0,
          std::string("there is no average of ") + base::dtype_name(dtype_) + "; reduce by sum, min or max");
    op = HVD_SUM;
    if (base::is_floating(dtype_) && std::has_single_bit(ranks)) {
      last_post = post / ranks;
    } else {
      finishes = true;
      last_post = 1.0;
      post_ = post;
      if (!base::is_floating(dtype_)) {
        expands = true;
        first_pre = 1.0;  // expand() applies prescale, in the tensor's own type
        wire = HostMath::partial_dtype(dtype_, HVD_AVG);
        if (base::dtype_bytes(dtype_) == 8) per = 2;
      }
    }
  }
  wire_bytes = per * base::dtype_bytes(wire);
  prescale_ = pre;
}

uint64_t TwoLevels::bytes() const { return base::dtype_bytes(dtype_); }

void TwoLevels::expand(const void* in, uint64_t n, void* to) const {
  if (per == 1) return math_->load_partial(to, wire, in, dtype_, n, prescale_);
  alignas(64) char scaled[kTile * sizeof(int64_t)];
  for (uint64_t done = 0; done < n; done += kTile) {
    const uint64_t m = std::min(kTile, n - done);
    // Scaled within its own type, as in a backend.
    math_->load_partial(scaled, dtype_, static_cast<const char*>(in) + done * sizeof(int64_t), dtype_, m, prescale_);
    char* const pairs = static_cast<char*>(to) + done * wire_bytes;
    dtype_ == HVD_INT64 ? split<int64_t>(scaled, m, ranks_, pairs) : split<uint64_t>(scaled, m, ranks_, pairs);
  }
}

void TwoLevels::lone(const void* in, uint64_t n, void* to) const {
  if (n == 0) return;
  if (expands)
    expand(in, n, to);
  else if (lone_copies())
    std::memmove(to, in, n * wire_bytes);
  else
    math_->reduce_all(to, &in, 1, n, dtype_, op, first_pre, first_post);
}

void TwoLevels::finish(void* sums, uint64_t n, void* out) const {
  if (n == 0) return;
  if (per == 1) return math_->store_result(out, dtype_, sums, wire, n, ranks_, post_);
  if (dtype_ == HVD_INT64)
    join<int64_t, __int128>(sums, n, ranks_, out);
  else
    join<uint64_t, unsigned __int128>(sums, n, ranks_, out);
  if (post_ != 1.0) math_->convert(out, dtype_, out, dtype_, n, post_);
}

// Allreduce and reduce in two levels: within the hosts, between them, and back. See hierarchical.h.
//
// Between the levels, each lane holds its slice of all tensors as one buffer, so the cross lowering always gets one
// buffer. For a single tensor that is not reduced in place, that buffer is part of the output.

namespace {

// The first chunk and the last one have nothing beside them, which is 1/16 of the work then. More chunks do not pay.
constexpr uint64_t kMostChunks = 16;

// `c` in `number` collectives that follow one another in its list of buffers, of about equal size.
std::vector<plugins::Collective> chunks_of(const plugins::Collective& c, uint64_t number) {
  const Slices slices({total_elements(c)}, number);
  std::vector<plugins::Collective> chunks;
  for (size_t k = 0; k < number; ++k) chunks.push_back(elements_of(c, slices.begin(k), slices.size(k)));
  return chunks;
}

}  // namespace

// Reduces within the host. Returns the buffer that then holds this rank's slice in the wire type: `to`, or the input
// itself if the rank is alone and nothing changes. `to` has the length of the slice; with a single lane, every rank
// passes a buffer of full length.
hvd_buf HierarchicalLowering::first_level(Schedule& schedule, const plugins::Collective& c, const TwoLevels& levels,
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
  plugins::Collective source;  // the expanded input
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
hvd_buf HierarchicalLowering::finish(Schedule& schedule, const TwoLevels& levels, hvd_buf sums, uint64_t n,
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
struct HierarchicalLowering::Reduction {
  const plugins::Collective& c;
  const TwoLevels levels;
  const Slices slices;
  hvd_buf in_out{};      // this rank's slice of the output, if the list has one buffer
  hvd_buf to{}, data{};  // the slice in the wire type: where the sums go, and where the first level has left it
  hvd_buf result{};      // the complete slice
};

void HierarchicalLowering::within_hosts(Schedule& schedule, Reduction& r) {
  const plugins::Collective& c = r.c;
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

void HierarchicalLowering::between_hosts(Schedule& schedule, Reduction& r) {
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

void HierarchicalLowering::allreduce(Schedule& schedule, const plugins::Collective& c) {
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
void HierarchicalLowering::allreduce_in_chunks(Schedule& schedule, const plugins::Collective& c, uint64_t number) {
  // The first collectives of a communicator may wait for other ranks, so they are not overlapped.
  const bool overlap = std::exchange(connected_, true);
  std::vector<plugins::Collective> chunks = chunks_of(c, number);
  std::vector<Reduction> reductions;
  reductions.reserve(chunks.size());
  for (plugins::Collective& chunk : chunks) {
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
void HierarchicalLowering::spread(Schedule& schedule, const plugins::Collective& c, const Slices& slices,
                                  hvd_buf result) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const bool mine = in_lane(slices.lanes());
  if (!local_) {
    if (c.counts.size() == 1 && same_place(result, c.out[0])) return;
    ByteList out;
    for (size_t i = 0; i < c.counts.size(); ++i) out.add(part_of(c.out[i], 0, c.counts[i] * width));
    copy_on_host(schedule, out.unpack(result));
    return;
  }
  if (slices.lanes() > 1)
    return gather_slices(schedule, c, slices, [&](size_t i, uint64_t n) {
      return n ? part_of(result, slices.position(i, my_local_) * width, n * width) : part_of(c.out[i], 0, 0);
    });
  auto& s = step(c, HVD_BROADCAST);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.counts[i] == 0) continue;
    add(s, mine ? part_of(result, slices.offset(i) * width, c.counts[i] * width) : c.out[i], c.out[i], c.counts[i]);
  }
  local_->write_steps(schedule, s);
}

void HierarchicalLowering::reduce(Schedule& schedule, const plugins::Collective& c) {
  const TwoLevels levels(math_, c, static_cast<uint32_t>(ranks_), spread_);
  const Slices slices(c.counts, lanes_for(total_bytes(c)));
  if (slices.total() == 0) return;
  const auto root = static_cast<size_t>(c.root);
  const auto root_host = static_cast<size_t>(layout_.host_of[root]);
  const auto root_local = static_cast<size_t>(layout_.local_of[root]);
  const uint64_t width = base::dtype_bytes(c.dtype);
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

// Reducescatter in two levels. See hierarchical.h.
//
// Lane j serves the ranks whose local index is j modulo the number of lanes. Within a host, lane j's member gets the
// sums of all parts for those ranks. Between hosts, it gets the sums for the ranks of its own host. If a host has more
// members than there are lanes, the lane's member hands the parts out at the end.

void HierarchicalLowering::reducescatter(Schedule& schedule, const plugins::Collective& c) {
  const TwoLevels levels(math_, c, static_cast<uint32_t>(ranks_), spread_);
  const uint64_t width = levels.wire_bytes;
  const size_t n = c.counts.size();
  const auto count = [&c, this](size_t i, size_t r) { return out_part(c, i, static_cast<int32_t>(r), size()); };
  const auto lane_of = [this](size_t r) { return static_cast<size_t>(layout_.local_of[r]) % lanes_; };
  const uint64_t total = total_elements(c);
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
    const std::vector<hvd_buf> sum_bufs =
        direct ? c.out : packed_buffers(schedule.scratch_buf(here * width), result_counts, width);
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
void HierarchicalLowering::scatter_first(Schedule& schedule, const plugins::Collective& c, const TwoLevels& levels,
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
                      bytes = base::dtype_bytes(c.dtype)](Schedule&) {
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
    in = packed_buffers(schedule.scratch_buf(total_elements(c) * width), c.counts, width);
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

}  // namespace hvd::dataplane
