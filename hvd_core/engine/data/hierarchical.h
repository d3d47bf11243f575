// A Transport for a process set on several hosts: one transport within each host, and one between hosts.
//
// Lane j connects the j-th members of all hosts by a transport between hosts ("cross"). There are as many lanes as the
// smallest host has members. A large collective is divided into one slice per lane, so that all lanes work at the same
// time and each byte leaves a host once. A small one uses lane 0 alone, because it is limited by the number of
// messages. Members beyond the lanes take part within their host only. Buffers must be in host memory where a
// computation reads them (averages, lists between the levels, hosts whose ranks are not consecutive).
//
// A reduction runs within each host first, then between hosts, in host order. The first level applies prescale, the
// last one postscale; hierarchical_levels.h says how averages are computed. All ranks get the same bits if the
// transports below give all of their ranks the same bits.
//
// A large allreduce overlaps the levels: it runs in chunks, each of which is divided into slices, and while one chunk
// is between the hosts, the next one is reduced within them. The other collectives run their levels one after another.
//
// Used by the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/hierarchical_levels.h"
#include "engine/data/hierarchical_slices.h"
#include "engine/data/host_math.h"
#include "engine/data/layout.h"
#include "engine/data/transport.h"

namespace hvd::data {

class HierarchicalTransport final : public Transport {
 public:
  // A collective of up to this many bytes uses one lane: a link between hosts moves about this much in the latency of
  // one message, so a second lane would only add messages.
  static constexpr uint64_t kSingleLaneBytes = 16384;
  // Bytes of a chunk of an allreduce that overlaps its levels. Equal on all members of the layout.
  static uint64_t chunk_bytes_for(const Layout& layout);
  struct Settings {
    uint64_t single_lane_bytes = kSingleLaneBytes;
    uint64_t chunk_bytes = 0;  // 0: the levels never overlap. Else no backend of the two may wait in a collective call
    std::string phase;         // of an allreduce that overlaps its levels, in a timeline
  };

  // `local` spans layout.neighbours(), in that order; null if this rank is alone on its host. `cross` spans the
  // members of this rank's lane, in host order; null if the rank is in no lane, or all ranks are on one host. All must
  // outlive this object and its schedules. Throws plugin::BackendError if they do not fit the layout.
  HierarchicalTransport(Layout layout, Transport* local, Transport* cross, const HostMath& math, Settings settings);

  // An alltoall has in_counts and out_counts on all ranks or on no rank. Reducescatter and alltoall do not work in
  // place.
  void write_steps(Schedule& schedule, const plugin::Collective& c) override;
  int32_t rank() const override { return layout_.me; }
  int32_t size() const override { return layout_.size(); }

 private:
  // Consecutive ranks on one host.
  struct Run {
    size_t rank, length;
  };
  struct Exchange;  // hierarchical_alltoall.cc

  struct Reduction;  // hierarchical_reduce.cc

  void alone(Schedule& schedule, const plugin::Collective& c);
  void barrier(Schedule& schedule, const plugin::Collective& c);
  void allreduce(Schedule& schedule, const plugin::Collective& c);
  void allreduce_in_chunks(Schedule& schedule, const plugin::Collective& c, uint64_t number);
  void reduce(Schedule& schedule, const plugin::Collective& c);
  void reducescatter(Schedule& schedule, const plugin::Collective& c);
  void broadcast(Schedule& schedule, const plugin::Collective& c);
  void allgather(Schedule& schedule, const plugin::Collective& c);
  void alltoall(Schedule& schedule, const plugin::Collective& c);

  void within_hosts(Schedule& schedule, Reduction& r);
  void between_hosts(Schedule& schedule, Reduction& r);
  hvd_buf first_level(Schedule& schedule, const plugin::Collective& c, const TwoLevels& levels, const Slices& slices,
                      hvd_buf to);
  hvd_buf finish(Schedule& schedule, const TwoLevels& levels, hvd_buf sums, uint64_t n, hvd_buf out);
  void spread(Schedule& schedule, const plugin::Collective& c, const Slices& slices, hvd_buf result);
  void scatter_first(Schedule& schedule, const plugin::Collective& c, const TwoLevels& levels,
                     const std::vector<uint64_t>& at, hvd_buf kept);
  void exchange_counts(Schedule& schedule, const std::shared_ptr<Exchange>& x);
  void check_counts(const Exchange& x) const;
  void exchange_data(Schedule& schedule, const std::shared_ptr<Exchange>& x);
  void sort_by_host(const Exchange& x, const std::vector<hvd_buf>& by_rank, const std::vector<hvd_buf>& by_host,
                    bool inputs);

  static bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }
  // A collective to fill in and pass to write_steps(): without buffers, with the settings that all steps of `c` share.
  plugin::Collective& step(const plugin::Collective& c, int32_t coll);
  // Adds a buffer to a step. add_row() adds its counts per rank, which the caller fills in.
  static void add(plugin::Collective& step, hvd_buf in, hvd_buf out, uint64_t count);
  static uint64_t* add_row(std::vector<uint64_t>& table, size_t ranks);

  size_t lanes_for(uint64_t bytes) const { return bytes <= settings_.single_lane_bytes ? 1 : lanes_; }
  bool in_lane(size_t lanes) const { return my_local_ < lanes; }
  const std::vector<int32_t>& members(size_t host) const { return layout_.hosts[host]; }
  // How many members of `host` the lane serves.
  size_t rounds(size_t host, size_t lane) const { return (members(host).size() + lanes_ - 1 - lane) / lanes_; }

  const Layout layout_;
  Transport* const local_;
  Transport* const cross_;
  const HostMath& math_;
  const Settings settings_;
  bool connected_ = false;  // a chunked allreduce has run: the communicators' first operations are over
  // Derived from the layout.
  const size_t ranks_, lanes_, hosts_, my_host_, my_local_, neighbours_;
  bool several_somewhere_ = false;  // some host has more than one member
  Hosts spread_{};
  std::vector<int32_t> host_order_;       // set ranks, host by host
  bool in_order_ = true;                  // host order is rank order
  std::vector<std::vector<Run>> runs_;    // by host
  std::vector<std::vector<int32_t>> of_;  // by lane: the ranks it serves (local index modulo lanes), in host order
  std::vector<size_t> place_;             // by rank: index within of_[its lane]
  plugin::Collective step_;
};

}  // namespace hvd::data
