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
#include <cstring>
#include <utility>

#include "engine/data/hierarchical.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"
#include "engine/types/sizes.h"

namespace hvd::data {

// The state of one alltoall. The computations that use it keep it alive.
struct HierarchicalTransport::Exchange {
  plugin::Collective c;
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

void HierarchicalTransport::alltoall(Schedule& schedule, const plugin::Collective& c) {
  if (c.counts.empty()) return;
  auto x = std::make_shared<Exchange>();
  x->c = c;
  x->width = types::dtype_bytes(c.dtype);
  x->equal = c.in_counts.empty();
  if (x->equal) return exchange_data(schedule, x);
  exchange_counts(schedule, x);
  schedule.compute([this, x](Schedule& p) {
    check_counts(*x);
    exchange_data(p, x);
  });
}

void HierarchicalTransport::exchange_counts(Schedule& schedule, const std::shared_ptr<Exchange>& x) {
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
void HierarchicalTransport::check_counts(const Exchange& x) const {
  if (!in_lane(lanes_)) return;
  const size_t n = x.c.counts.size(), served = of_[my_local_].size(), here = rounds(my_host_, my_local_);
  const auto check = [&](uint64_t elements, int32_t rank) {
    if (elements <= types::kMostBytes / x.width) return;
    throw plugin::BackendError(HVD_E_INVALID, 0, 0,
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
void HierarchicalTransport::exchange_data(Schedule& schedule, const std::shared_ptr<Exchange>& x) {
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
    uint64_t total = 0, done = 0;
    for (uint64_t m : c.counts) total += m;
    const hvd_buf all = schedule.scratch_buf(total * width);
    for (size_t i = 0; i < n; done += c.counts[i++]) in[i] = part_of(all, done * width, c.counts[i] * width);
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
  uint64_t wanted = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t r = 0; r < ranks_; ++r) wanted += x->from(i, r, ranks_);
  if (!in_order_) {
    const hvd_buf all = schedule.scratch_buf(wanted * width);
    uint64_t done = 0;
    for (size_t i = 0; i < n; ++i) {
      uint64_t m = 0;
      for (size_t r = 0; r < ranks_; ++r) m += x->from(i, r, ranks_);
      out[i] = part_of(all, done * width, m * width);
      done += m;
    }
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
        throw plugin::BackendError(HVD_E_INVALID, 0, 0,
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
void HierarchicalTransport::sort_by_host(const Exchange& x, const std::vector<hvd_buf>& by_rank,
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

}  // namespace hvd::data
