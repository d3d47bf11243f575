// A process set on several hosts: any transport within each host, any transport between hosts, as one.
//
// Lane j is the j-th member of every host; there are as many as the smallest host has members, and each has a cross
// transport of its own. Large operations are cut into one slice per lane, so that all lanes work at once and a byte
// leaves a host once; small ones take lane 0 alone, because there the number of messages counts. Members beyond the
// lanes take part within their host only. Data must lie in host memory where a computation touches it (averages,
// lists between the levels, hosts whose ranks do not stand together).
//
// Reductions add up within a host first, then between hosts, in host order; prescale is applied by the first level,
// postscale by the last; hierarchical_levels.h says what an average does. All ranks end with the same bits if the
// transports below give all of their ranks the same bits.
//
// One operation is one chain of steps. To overlap the levels, a Program would need steps on two communicators under way
// at once; the slices could then be cut into chunks without a change to the arithmetic here.
//
// Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/hierarchical_levels.h"
#include "engine/data/hierarchical_slices.h"
#include "engine/data/host_math.h"
#include "engine/data/layout.h"
#include "engine/data/transport.h"

namespace hvd::data {

class HierarchicalTransport final : public Transport {
 public:
  // Up to so many bytes one lane carries an operation. About what a link between hosts moves in the time of one
  // message; below it, a second lane only adds messages.
  static constexpr uint64_t kSingleLaneBytes = 16384;

  // `local` spans layout.neighbours(), in that order; null when this rank is alone on its host. `cross` spans the
  // members of this rank's lane, in host order; null when it is in none, or all are on one host. All must outlive this
  // object and its programs. Throws plugin::BackendError when they do not fit the layout.
  HierarchicalTransport(Layout layout, Transport* local, Transport* cross, const HostMath& math,
                        uint64_t single_lane_bytes = kSingleLaneBytes);

  // An alltoall either has in_counts and out_counts on all ranks or on none. Reducescatter and alltoall do not work in
  // place.
  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return layout_.me; }
  int32_t size() const override { return layout_.size(); }

 private:
  // Consecutive ranks on one host.
  struct Run {
    size_t rank, length;
  };
  struct Exchange;  // hierarchical_alltoall.cc

  void alone(Program& program, const plugin::Collective& c);
  void barrier(Program& program, const plugin::Collective& c);
  void allreduce(Program& program, const plugin::Collective& c);
  void reduce(Program& program, const plugin::Collective& c);
  void reducescatter(Program& program, const plugin::Collective& c);
  void broadcast(Program& program, const plugin::Collective& c);
  void allgather(Program& program, const plugin::Collective& c);
  void alltoall(Program& program, const plugin::Collective& c);

  hvd_buf first_level(Program& program, const plugin::Collective& c, const TwoLevels& levels, const Slices& slices,
                      hvd_buf to);
  hvd_buf finish(Program& program, const TwoLevels& levels, hvd_buf sums, uint64_t n, hvd_buf out);
  void spread(Program& program, const plugin::Collective& c, const Slices& slices, hvd_buf result);
  void scatter_first(Program& program, const plugin::Collective& c, const TwoLevels& levels,
                     const std::vector<uint64_t>& at, hvd_buf kept);
  void exchange_counts(Program& program, const std::shared_ptr<Exchange>& x);
  void exchange_data(Program& program, const std::shared_ptr<Exchange>& x);
  void sort_by_host(const Exchange& x, const std::vector<hvd_buf>& by_rank, const std::vector<hvd_buf>& by_host,
                    bool inputs);

  static bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }
  // The step to fill in and plan(): empty but for what every step of `c` shares.
  plugin::Collective& step(const plugin::Collective& c, int32_t coll);
  // One more buffer of a step with counts per rank; the row is to be filled in by the caller.
  static void add(plugin::Collective& step, hvd_buf in, hvd_buf out, uint64_t count);
  static uint64_t* add_row(std::vector<uint64_t>& table, size_t ranks);

  size_t lanes_for(uint64_t bytes) const { return bytes <= single_lane_bytes_ ? 1 : lanes_; }
  bool in_lane(size_t lanes) const { return my_local_ < lanes; }
  const std::vector<int32_t>& members(size_t host) const { return layout_.hosts[host]; }
  // Members of `host` in lane `lane`.
  size_t rounds(size_t host, size_t lane) const { return (members(host).size() + lanes_ - 1 - lane) / lanes_; }

  const Layout layout_;
  Transport* const local_;
  Transport* const cross_;
  const HostMath& math_;
  const uint64_t single_lane_bytes_;
  // The layout in other words.
  const size_t ranks_, lanes_, hosts_, my_host_, my_local_, neighbours_;
  bool several_somewhere_ = false;        // some host has more than one member
  std::vector<int32_t> host_order_;       // set ranks, host by host
  bool in_order_ = true;                  // host order is rank order
  std::vector<std::vector<Run>> runs_;    // by host
  std::vector<std::vector<int32_t>> of_;  // by lane: the ranks it serves (local index modulo lanes), in host order
  std::vector<size_t> place_;             // by rank: index within of_[its lane]
  plugin::Collective step_;
};

}  // namespace hvd::data
