// Sizes derived from the layout, the choice of the algorithm, and the collectives that move data. See hierarchical.h.
#include "engine/dataplane/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/parts.h"
#include "engine/plugins/errors.h"

namespace hvd::dataplane {

HierarchicalLowering::HierarchicalLowering(Layout layout, Lowering* local, Lowering* cross, const HostMath& math,
                                           Settings settings)
    : layout_(std::move(layout)),
      local_(local),
      cross_(cross),
      math_(math),
      settings_(std::move(settings)),
      ranks_(static_cast<size_t>(layout_.size())),
      lanes_(static_cast<size_t>(layout_.lanes)),
      hosts_(layout_.hosts.size()),
      my_host_(static_cast<size_t>(layout_.my_host())),
      my_local_(static_cast<size_t>(layout_.my_local())),
      neighbours_(layout_.neighbours().size()) {
  spread_ = {static_cast<uint32_t>(hosts_), static_cast<uint32_t>(neighbours_), 0};
  of_.resize(lanes_);
  runs_.resize(hosts_);
  place_.resize(ranks_);
  for (size_t h = 0; h < hosts_; ++h) {
    spread_.most = std::max(spread_.most, static_cast<uint32_t>(members(h).size()));
    for (int32_t r : members(h)) {
      const auto rank = static_cast<size_t>(r);
      in_order_ = in_order_ && rank == host_order_.size();
      host_order_.push_back(r);
      auto& runs = runs_[h];
      if (!runs.empty() && runs.back().rank + runs.back().length == rank)
        ++runs.back().length;
      else
        runs.push_back({rank, 1});
      auto& lane = of_[static_cast<size_t>(layout_.local_of[rank]) % lanes_];
      place_[rank] = lane.size();
      lane.push_back(r);
    }
  }
}

// Enough for a ring between the hosts: its messages, one for each lane and host, are not dominated by their latency.
uint64_t HierarchicalLowering::chunk_bytes_for(const Layout& layout) {
  constexpr uint64_t kLeastChunk = 2 << 20, kLeastMessage = 65536;
  return std::max(kLeastChunk, static_cast<uint64_t>(layout.lanes) * layout.hosts.size() * kLeastMessage);
}

void HierarchicalLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (c.coll == HVD_SEND || c.coll == HVD_RECV)  // Batch asks for them in sets of two ranks, which have one level
    throw plugins::BackendError(HVD_E_UNSUPPORTED, 0, 0, "send and receive are not served over two levels of hosts");
  switch (c.coll) {
    case HVD_ALLREDUCE:
      return allreduce(schedule, c);
    case HVD_REDUCE:
      return reduce(schedule, c);
    case HVD_REDUCESCATTER:
      return reducescatter(schedule, c);
    case HVD_BROADCAST:
      return broadcast(schedule, c);
    case HVD_ALLGATHER:
      return allgather(schedule, c);
    case HVD_ALLTOALL:
      return alltoall(schedule, c);
    case HVD_BARRIER:
      return barrier(schedule, c);
    default:
      throw plugins::BackendError(HVD_E_INVALID, 0, 0, "there is no collective number " + std::to_string(c.coll));
  }
}

// No rank leaves the first barrier before all ranks of its host have arrived, nor the second before all hosts have.
void HierarchicalLowering::barrier(Schedule& schedule, const plugins::Collective& c) {
  if (local_) local_->write_steps(schedule, step(c, HVD_BARRIER));
  if (in_lane(1)) cross_->write_steps(schedule, step(c, HVD_BARRIER));
  if (local_) local_->write_steps(schedule, step(c, HVD_BARRIER));
}

plugins::Collective& HierarchicalLowering::step(const plugins::Collective& c, int32_t coll) {
  step_.reset(c.settings());
  step_.coll = coll;
  step_.root = step_.peer = 0;
  step_.prescale = step_.postscale = 1.0;
  return step_;
}

void HierarchicalLowering::add(plugins::Collective& step, hvd_buf in, hvd_buf out, uint64_t count) {
  step.in.push_back(in);
  step.out.push_back(out);
  step.counts.push_back(count);
}

std::vector<hvd_buf> HierarchicalLowering::packed_buffers(const hvd_buf& all, const std::vector<uint64_t>& counts,
                                                          uint64_t width) {
  std::vector<hvd_buf> buffers;
  uint64_t done = 0;
  for (uint64_t n : counts) {
    buffers.push_back(part_of(all, done, n * width));
    done += n * width;
  }
  return buffers;
}

uint64_t* HierarchicalLowering::add_row(std::vector<uint64_t>& table, size_t ranks) {
  table.resize(table.size() + ranks, 0);
  return table.data() + table.size() - ranks;
}

// Broadcast and allgather in two levels. See hierarchical.h.
//
// All parts are sent from the input or output buffers directly, without scratch memory. Parts that are not contiguous
// are several buffers of one step, even if only one rank contributes to each.

void HierarchicalLowering::broadcast(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  if (total_elements(c) == 0) return;
  const Slices slices(c.counts, lanes_for(total_bytes(c)));
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
  gather_slices(schedule, c, slices,
                [&](size_t i, uint64_t n) { return part_of(c.out[i], slices.start(i, my_local_) * width, n * width); });
}

// The lanes' slices of all buffers go to all ranks of the host. mine(i, elements): this rank's part of buffer i.
void HierarchicalLowering::gather_slices(Schedule& schedule, const plugins::Collective& c, const Slices& slices,
                                         const std::function<hvd_buf(size_t, uint64_t)>& mine) {
  auto& s = step(c, HVD_ALLGATHER);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.counts[i] == 0) continue;
    const uint64_t n = slices.count(i, my_local_);
    add(s, mine(i, n), c.out[i], n);
    uint64_t* row = add_row(s.out_counts, neighbours_);
    for (size_t lane = 0; lane < slices.lanes(); ++lane) row[lane] = slices.count(i, lane);
  }
  local_->write_steps(schedule, s);
}

// First within each host. Then between hosts: each lane carries a slice of its host's parts. Then within each host
// again, for the parts from other hosts.
void HierarchicalLowering::allgather(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
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

// Alltoall in two levels. See hierarchical.h.
//
// Lane j serves the ranks whose local index is j modulo the number of lanes; if a host has several of them, each one is
// a "round". First, lane j's member on each host collects its neighbours' data for the ranks that the lane serves. Then
// the hosts exchange the data within the lane. If a host has more members than there are lanes, the lane's member hands
// the data out at the end. The counts must be known for that, so they take the same three steps first, as tables of
// known size.
//
// Memory between the levels is in host order: sorted by buffer, then by the host, round and local index of the other
// side.

// The state of one alltoall. The computations that use it keep it alive.
struct HierarchicalLowering::Exchange {
  plugins::Collective c;
  uint64_t width = 0;
  bool equal = false;  // all parts are equal, so no counts are exchanged
  // On a rank in a lane, which serves the ranks of_[lane]: how many elements each neighbour has for each of them (by
  // neighbour, buffer, served rank), and how many each member of a host has for the served ranks of this host (by host,
  // buffer, round, member).
  uint64_t* from_neighbours = nullptr;
  uint64_t* from_hosts = nullptr;

  // Elements of buffer i that go to rank r, and that come from it.
  uint64_t to(size_t i, size_t r, size_t ranks) const {
    return in_part(c, i, static_cast<int32_t>(r), static_cast<int32_t>(ranks));
  }
  uint64_t from(size_t i, size_t r, size_t ranks) const {
    return out_part(c, i, static_cast<int32_t>(r), static_cast<int32_t>(ranks));
  }
};

void HierarchicalLowering::alltoall(Schedule& schedule, const plugins::Collective& c) {
  if (c.counts.empty()) return;
  auto x = std::make_shared<Exchange>();
  x->c = c;
  x->width = base::dtype_bytes(c.dtype);
  x->equal = c.in_counts.empty();
  if (x->equal) return exchange_data(schedule, x);
  exchange_counts(schedule, x);
  schedule.compute([this, x](Schedule& p) {
    check_counts(*x);
    exchange_data(p, x);
  });
}

void HierarchicalLowering::exchange_counts(Schedule& schedule, const std::shared_ptr<Exchange>& x) {
  const size_t n = x->c.counts.size();
  const bool mine = in_lane(lanes_);
  const size_t served = mine ? of_[my_local_].size() : 0, here = mine ? rounds(my_host_, my_local_) : 0;

  // By lane, buffer, served rank.
  uint64_t* const table = schedule.scratch_array<uint64_t>(n * ranks_);
  uint64_t* to = table;
  for (const auto& ranks : of_)
    for (size_t i = 0; i < n; ++i)
      for (int32_t r : ranks) *to++ = x->c.in_counts[i * ranks_ + static_cast<size_t>(r)];
  x->from_neighbours = table;
  if (local_) {
    const uint64_t received = neighbours_ * n * served;
    x->from_neighbours = schedule.scratch_array<uint64_t>(received);
    auto& s = step(x->c, HVD_ALLTOALL);
    s.dtype = HVD_INT64;
    add(s, {table, 0, n * ranks_ * 8}, {x->from_neighbours, 0, received * 8}, n * ranks_);
    uint64_t* give = add_row(s.in_counts, neighbours_);
    for (size_t lane = 0; lane < lanes_; ++lane) give[lane] = n * of_[lane].size();
    uint64_t* get = add_row(s.out_counts, neighbours_);
    for (size_t m = 0; m < neighbours_; ++m) get[m] = n * served;
    local_->write_steps(schedule, s);
  }
  if (!mine) return;

  uint64_t* const sent = schedule.scratch_array<uint64_t>(neighbours_ * n * served);
  schedule.compute([this, x, n, served, sent](Schedule&) {
    uint64_t* at = sent;
    for (size_t h = 0, first = 0; h < hosts_; first += rounds(h++, my_local_))
      for (size_t i = 0; i < n; ++i)
        for (size_t k = 0; k < rounds(h, my_local_); ++k)
          for (size_t m = 0; m < neighbours_; ++m) *at++ = x->from_neighbours[(m * n + i) * served + first + k];
  });
  x->from_hosts = schedule.scratch_array<uint64_t>(n * here * ranks_);
  auto& s = step(x->c, HVD_ALLTOALL);
  s.dtype = HVD_INT64;
  add(s, {sent, 0, neighbours_ * n * served * 8}, {x->from_hosts, 0, n * here * ranks_ * 8}, neighbours_ * n * served);
  uint64_t* give = add_row(s.in_counts, hosts_);
  for (size_t h = 0; h < hosts_; ++h) give[h] = n * rounds(h, my_local_) * neighbours_;
  uint64_t* get = add_row(s.out_counts, hosts_);
  for (size_t h = 0; h < hosts_; ++h) get[h] = n * here * members(h).size();
  cross_->write_steps(schedule, s);
}

// Counts of other ranks. Buffers are made, and divided, by sums of them.
void HierarchicalLowering::check_counts(const Exchange& x) const {
  if (!in_lane(lanes_)) return;
  const size_t n = x.c.counts.size(), served = of_[my_local_].size(), here = rounds(my_host_, my_local_);
  const auto check = [&](uint64_t elements, int32_t rank) {
    if (elements <= base::kMostBytes / x.width) return;
    throw plugins::BackendError(HVD_E_INVALID, 0, 0,
                                "alltoall: rank " + std::to_string(layout_.members[static_cast<size_t>(rank)]) +
                                    " announced a part of " + std::to_string(elements) +
                                    " elements, more than an address space has place for");
  };
  for (size_t m = 0, at = 0; m < neighbours_; ++m)
    for (const size_t end = at + n * served; at < end; ++at) check(x.from_neighbours[at], members(my_host_)[m]);
  for (size_t h = 0, at = 0; h < hosts_; ++h)
    for (size_t k = 0; k < n * here; ++k)
      for (const int32_t rank : members(h)) check(x.from_hosts[at++], rank);
}

// The counts are known.
void HierarchicalLowering::exchange_data(Schedule& schedule, const std::shared_ptr<Exchange>& x) {
  const auto& c = x->c;
  const uint64_t width = x->width;
  const size_t n = c.counts.size();
  const bool mine = in_lane(lanes_), hands_out = neighbours_ > lanes_;
  const size_t served = mine ? of_[my_local_].size() : 0, here = mine ? rounds(my_host_, my_local_) : 0;
  const auto from_neighbour = [&](size_t m, size_t i, size_t d) {
    return x->equal ? c.counts[i] / ranks_ : x->from_neighbours[(m * n + i) * served + d];
  };
  // By host h: n * here * members(h) counts, after the counts of the hosts before it.
  const auto from_host = [&](size_t h, size_t before, size_t i, size_t k, size_t m) {
    if (x->equal) return c.counts[i] / ranks_;
    return x->from_hosts[n * here * before + (i * here + k) * members(h).size() + m];
  };

  // Inputs in host order.
  std::vector<hvd_buf> in = c.in;
  if (!in_order_) {
    in = packed_buffers(schedule.scratch_buf(total_bytes(c)), c.counts, width);
    schedule.compute([this, x, in](Schedule&) { sort_by_host(*x, x->c.in, in, true); });
  }

  // Within the host, to the lanes: one buffer of the step for each buffer, host and round.
  std::vector<hvd_buf> collected = in;
  if (local_) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; ++i)
      for (size_t d = 0; d < served; ++d)
        for (size_t m = 0; m < neighbours_; ++m) total += from_neighbour(m, i, d);
    const hvd_buf all = schedule.scratch_buf(total * width);
    auto& s = step(c, HVD_ALLTOALL);
    uint64_t done = 0;
    for (size_t i = 0; i < n; ++i) {
      collected[i] = part_of(all, done * width, 0);
      uint64_t at = 0;
      for (size_t h = 0, d = 0; h < hosts_; ++h) {
        for (size_t k = 0; k * lanes_ < members(h).size(); ++k) {
          uint64_t give = 0, get = 0;
          uint64_t* row = add_row(s.in_counts, neighbours_);
          for (size_t lane = 0; lane < lanes_ && k * lanes_ + lane < members(h).size(); ++lane)
            give += row[lane] = x->to(i, static_cast<size_t>(members(h)[k * lanes_ + lane]), ranks_);
          row = add_row(s.out_counts, neighbours_);
          if (mine && k < rounds(h, my_local_)) {
            for (size_t m = 0; m < neighbours_; ++m) get += row[m] = from_neighbour(m, i, d);
            ++d;
          }
          add(s, part_of(in[i], at * width, give * width), part_of(all, done * width, get * width), give);
          at += give;
          done += get;
        }
      }
      collected[i].bytes = done * width - (collected[i].offset - all.offset);
    }
    local_->write_steps(schedule, s);
  }

  // Between the hosts.
  std::vector<hvd_buf> out = c.out, received = c.out;  // out: in host order
  if (!in_order_) {
    std::vector<uint64_t> wanted;
    for (size_t i = 0; i < n; ++i) wanted.push_back(out_elements(c, i, rank(), size()));
    const uint64_t total = std::accumulate(wanted.begin(), wanted.end(), uint64_t{0});
    out = packed_buffers(schedule.scratch_buf(total * width), wanted, width);
  }
  if (mine) {
    auto& s = step(c, HVD_ALLTOALL);
    for (size_t i = 0; i < n; ++i) {
      uint64_t give = 0, get = 0;
      uint64_t* row = add_row(s.in_counts, hosts_);
      for (size_t h = 0, d = 0; h < hosts_; ++h)
        for (size_t k = 0; k < rounds(h, my_local_); ++k, ++d)
          for (size_t m = 0; m < neighbours_; ++m) row[h] += from_neighbour(m, i, d);
      for (size_t h = 0; h < hosts_; ++h) give += row[h];
      row = add_row(s.out_counts, hosts_);
      for (size_t h = 0, before = 0; h < hosts_; before += members(h++).size()) {
        for (size_t k = 0; k < here; ++k)
          for (size_t m = 0; m < members(h).size(); ++m) row[h] += from_host(h, before, i, k, m);
        get += row[h];
      }
      if (!hands_out && get * width != out[i].bytes)
        throw plugins::BackendError(HVD_E_INVALID, 0, 0,
                                    "alltoall: the other ranks announced parts of " + std::to_string(get * width) +
                                        " bytes together, and before that of " + std::to_string(out[i].bytes));
      received[i] = hands_out ? schedule.scratch_buf(get * width) : out[i];
      add(s, collected[i], received[i], give);
    }
    cross_->write_steps(schedule, s);
  }

  // Within the host, from the lanes to the ranks they serve: one buffer of the step for each buffer and host.
  if (hands_out) {
    auto& s = step(c, HVD_ALLTOALL);
    for (size_t i = 0; i < n; ++i) {
      uint64_t given = 0, got = 0;
      for (size_t h = 0, before = 0; h < hosts_; before += members(h++).size()) {
        uint64_t give = 0, get = 0;
        uint64_t* row = add_row(s.in_counts, neighbours_);
        for (size_t k = 0; k < here; ++k) {
          uint64_t& there = row[k * lanes_ + my_local_];
          for (size_t m = 0; m < members(h).size(); ++m) there += from_host(h, before, i, k, m);
          give += there;
        }
        for (int32_t r : members(h)) get += x->from(i, static_cast<size_t>(r), ranks_);
        add_row(s.out_counts, neighbours_)[my_local_ % lanes_] = get;
        add(s, part_of(received[i], given * width, give * width), part_of(out[i], got * width, get * width), give);
        given += give;
        got += get;
      }
    }
    local_->write_steps(schedule, s);
  }
  if (!in_order_) schedule.compute([this, x, out](Schedule&) { sort_by_host(*x, x->c.out, out, false); });
}

// Copies inputs from rank order to host order, or outputs from host order to rank order.
void HierarchicalLowering::sort_by_host(const Exchange& x, const std::vector<hvd_buf>& by_rank,
                                        const std::vector<hvd_buf>& by_host, bool inputs) {
  std::vector<uint64_t> at(ranks_);
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const auto bytes = [&](size_t r) { return (inputs ? x.to(i, r, ranks_) : x.from(i, r, ranks_)) * x.width; };
    uint64_t done = 0;
    for (size_t r = 0; r < ranks_; done += bytes(r++)) at[r] = done;
    done = 0;
    for (int32_t member : host_order_) {
      const auto r = static_cast<size_t>(member);
      const uint64_t m = bytes(r);
      if (m && inputs) std::memcpy(address(by_host[i]) + done, address(by_rank[i]) + at[r], m);
      if (m && !inputs) std::memcpy(address(by_rank[i]) + at[r], address(by_host[i]) + done, m);
      done += m;
    }
  }
}

}  // namespace hvd::dataplane
