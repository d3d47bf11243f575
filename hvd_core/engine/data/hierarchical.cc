// Sizes derived from the layout, the choice of the algorithm, barrier, and sets of one rank. See hierarchical.h.
#include "engine/data/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/data/parts.h"
#include "engine/plugin/errors.h"
#include "engine/types/collectives.h"
#include "engine/types/dtypes.h"
#include "engine/types/reductions.h"

namespace hvd::data {

namespace {

void check(const Transport* t, const char* name, size_t rank, size_t size) {
  const bool fits = t ? static_cast<size_t>(t->rank()) == rank && static_cast<size_t>(t->size()) == size : size == 1;
  if (fits) return;
  const std::string found =
      t ? "it is rank " + std::to_string(t->rank()) + " of " + std::to_string(t->size()) : "it is missing";
  throw plugin::BackendError(HVD_E_INVALID, 0, 0,
                             std::string("the transport ") + name + " hosts must be rank " + std::to_string(rank) +
                                 " of " + std::to_string(size) + " for this layout; " + found);
}

}  // namespace

HierarchicalTransport::HierarchicalTransport(Layout layout, Transport* local, Transport* cross, const HostMath& math,
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
  check(local_, "within", my_local_, neighbours_);
  check(cross_, "between", my_host_, my_local_ < lanes_ ? hosts_ : 1);
  spread_ = {static_cast<uint32_t>(hosts_), static_cast<uint32_t>(neighbours_), 0};
  of_.resize(lanes_);
  runs_.resize(hosts_);
  place_.resize(ranks_);
  for (size_t h = 0; h < hosts_; ++h) {
    several_somewhere_ = several_somewhere_ || members(h).size() > 1;
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
uint64_t HierarchicalTransport::chunk_bytes_for(const Layout& layout) {
  constexpr uint64_t kLeastChunk = 2 << 20, kLeastMessage = 65536;
  return std::max(kLeastChunk, static_cast<uint64_t>(layout.lanes) * layout.hosts.size() * kLeastMessage);
}

void HierarchicalTransport::write_steps(Schedule& schedule, const plugin::Collective& c) {
  if (c.coll == HVD_SEND || c.coll == HVD_RECV)  // Batch asks for them in sets of two ranks, which have one level
    throw plugin::BackendError(HVD_E_UNSUPPORTED, 0, 0, "send and receive are not served over two levels of hosts");
  if (ranks_ == 1) return alone(schedule, c);
  if (hosts_ == 1) return local_->write_steps(schedule, c);
  if (!several_somewhere_) return cross_->write_steps(schedule, c);
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
      throw plugin::BackendError(HVD_E_INVALID, 0, 0, "there is no collective number " + std::to_string(c.coll));
  }
}

// A set of one rank: every collective is a copy; a reduction also applies the factors.
void HierarchicalTransport::alone(Schedule& schedule, const plugin::Collective& c) {
  const bool reduction = types::has_reduction(c.coll);
  if (reduction && !types::is_reducible(c.dtype, c.op))
    throw plugin::BackendError(
        HVD_E_UNSUPPORTED, 0, 0,
        std::string(types::reduce_op_name(c.op)) + " of " + types::dtype_name(c.dtype) + " does not exist");
  if (c.counts.empty()) return;
  schedule.compute([this, reduction, in = c.in, out = c.out, counts = c.counts, dtype = c.dtype, op = c.op,
                    pre = c.prescale, post = c.postscale](Schedule&) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const void* from = address(in[i]);
      if (reduction)
        math_.reduce_all(address(out[i]), &from, 1, counts[i], dtype, op, pre, post);
      else if (!same_place(in[i], out[i]) && out[i].base)
        std::memcpy(address(out[i]), from, counts[i] * types::dtype_bytes(dtype));
    }
  });
}

// No rank leaves the first barrier before all ranks of its host have arrived, nor the second before all hosts have.
void HierarchicalTransport::barrier(Schedule& schedule, const plugin::Collective& c) {
  if (local_) local_->write_steps(schedule, step(c, HVD_BARRIER));
  if (in_lane(1)) cross_->write_steps(schedule, step(c, HVD_BARRIER));
  if (local_) local_->write_steps(schedule, step(c, HVD_BARRIER));
}

plugin::Collective& HierarchicalTransport::step(const plugin::Collective& c, int32_t coll) {
  auto& s = step_;
  copy_settings(s, c);
  s.coll = coll;
  s.root = s.peer = 0;
  s.prescale = s.postscale = 1.0;
  s.in.clear();
  s.out.clear();
  s.counts.clear();
  s.in_counts.clear();
  s.out_counts.clear();
  return s;
}

void HierarchicalTransport::add(plugin::Collective& step, hvd_buf in, hvd_buf out, uint64_t count) {
  step.in.push_back(in);
  step.out.push_back(out);
  step.counts.push_back(count);
}

uint64_t* HierarchicalTransport::add_row(std::vector<uint64_t>& table, size_t ranks) {
  table.resize(table.size() + ranks, 0);
  return table.data() + table.size() - ranks;
}

}  // namespace hvd::data
