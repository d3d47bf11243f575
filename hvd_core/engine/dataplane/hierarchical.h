// Collectives of host memory on two levels, within hosts and between them: HierarchicalLowering, and the values that it
// computes with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/dataplane/host_math.h"
#include "engine/dataplane/layout.h"
#include "engine/dataplane/lowering.h"
#include "engine/plugins/communicator.h"

namespace hvd::dataplane {

// Divides a list of buffers into one slice per lane: each lane carries a part of the elements. The list is seen as one
// run of elements, so that a list of small tensors is divided as evenly as one large tensor. A value; any thread.
class Slices {
 public:
  // `counts`: elements of each buffer.
  Slices(const std::vector<uint64_t>& counts, size_t lanes) {
    offsets_.reserve(counts.size() + 1);
    offsets_.push_back(0);
    for (uint64_t n : counts) offsets_.push_back(offsets_.back() + n);
    const uint64_t each = total() / lanes, rest = total() % lanes;
    bounds_.reserve(lanes + 1);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const uint64_t bound = each * lane + rest * lane / lanes;
      // Large slices begin at a multiple of 64 elements: whole cache lines for most types.
      bounds_.push_back(each < 1024 ? bound : bound & ~uint64_t{63});
    }
    bounds_.push_back(total());
  }

  size_t lanes() const { return bounds_.size() - 1; }
  uint64_t total() const { return offsets_.back(); }
  // Elements before buffer i.
  uint64_t offset(size_t i) const { return offsets_[i]; }
  // The slice of a lane, in elements of the run. A member beyond the lanes has an empty slice at the end.
  uint64_t begin(size_t lane) const { return bounds_[std::min(lane, lanes())]; }
  uint64_t size(size_t lane) const { return begin(lane + 1) - begin(lane); }
  // The part of buffer i in the slice of a lane: its first element within the buffer, and its number of elements.
  uint64_t start(size_t i, size_t lane) const { return within(i, begin(lane)); }
  uint64_t count(size_t i, size_t lane) const { return within(i, begin(lane + 1)) - within(i, begin(lane)); }
  // The first element of that part within the slice.
  uint64_t position(size_t i, size_t lane) const { return offsets_[i] + start(i, lane) - begin(lane); }

 private:
  uint64_t within(size_t i, uint64_t at) const { return std::clamp(at, offsets_[i], offsets_[i + 1]) - offsets_[i]; }
  std::vector<uint64_t> offsets_, bounds_;
};

// How the ranks of a collective lie on hosts.
struct Hosts {
  uint32_t number;      // of hosts
  uint32_t here, most;  // ranks on this host, and on the host that has the most
};

// How a reduction is divided into two levels: the type that both levels reduce, the factors of each level, and the
// computation after the last level. A value; HierarchicalLowering copies it into its computations.
//
// The first level is a collective within a host, the last one a collective between hosts. Hosts may have different
// numbers of ranks, so an average is a sum and a division at the end:
//   integers up to 32 bits   are summed as 64-bit integers and divided exactly
//   64-bit integers          are summed as two numbers, quotient and remainder by the number of ranks: no sum overflows
//   float32, float64         are summed and divided (by a power of two: in the last level's factor, which is as exact)
//   float16, bfloat16        stay 16 bits wide between the levels, so they are rounded once per level. Their sum could
//                            overflow, so both levels average; hosts with fewer ranks count less, by a factor
class TwoLevels {
 public:
  // Throws plugins::BackendError for an average of booleans. `math` must outlive this object.
  TwoLevels(const HostMath& math, const plugins::Collective& c, uint32_t ranks, const Hosts& hosts);

  int32_t op = HVD_SUM;     // of both levels
  int32_t wire = 0;         // the type both levels reduce
  uint64_t per = 1;         // elements of the wire type for one element of the tensor
  uint64_t wire_bytes = 0;  // their size together
  bool expands = false;     // inputs are converted before the first level: expand()
  bool finishes = false;    // the sums need a computation after the last level: finish()
  double first_pre = 1.0, first_post = 1.0, last_post = 1.0;

  void expand(const void* in, uint64_t n, void* to) const;
  // The first level of a rank that is alone on its host. It is a plain copy if lone_copies().
  void lone(const void* in, uint64_t n, void* to) const;
  uint64_t bytes() const;  // of one element of the tensor
  bool lone_copies() const { return !expands && first_pre == 1.0 && first_post == 1.0; }
  // Computes the result in the tensor's type. Overwrites the sums; `out` may be the same memory if !expands.
  void finish(void* sums, uint64_t n, void* out) const;

 private:
  const HostMath* math_;
  int32_t dtype_;
  uint32_t ranks_;
  double prescale_ = 1.0;  // expand() multiplies by it
  double post_ = 1.0;      // finish() multiplies by it
};

// A Lowering for a process set on several hosts: one lowering within each host, and one between hosts.
//
// Lane j connects the j-th members of all hosts by a lowering between hosts ("cross"). There are as many lanes as the
// smallest host has members. A large collective is divided into one slice per lane, so that all lanes work at the same
// time and each byte leaves a host once. A small one uses lane 0 alone, because it is limited by the number of
// messages. Members beyond the lanes take part within their host only. Buffers must be in host memory where a
// computation reads them (averages, lists between the levels, hosts whose ranks are not consecutive).
//
// A reduction runs within each host first, then between hosts, in host order. The first level applies prescale, the
// last one postscale; TwoLevels says how averages are computed. All ranks get the same bits if the
// lowerings below give all of their ranks the same bits.
//
// A large allreduce overlaps the levels: it runs in chunks, each of which is divided into slices, and while one chunk
// is between the hosts, the next one is reduced within them. The other collectives run their levels one after another.
//
// Used by the driver.
class HierarchicalLowering final : public Lowering {
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

  // The layout has several hosts, one of which has several members. `local` spans layout.neighbours(), in that order;
  // null if this rank is alone on its host. `cross` spans the members of this rank's lane, in host order; null if the
  // rank is in no lane. All must outlive this object and its schedules.
  HierarchicalLowering(Layout layout, Lowering* local, Lowering* cross, const HostMath& math, Settings settings);

  // An alltoall has in_counts and out_counts on all ranks or on no rank. Reducescatter and alltoall do not work in
  // place.
  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return layout_.me; }
  int32_t size() const override { return layout_.size(); }

 private:
  // Consecutive ranks on one host.
  struct Run {
    size_t rank, length;
  };
  struct Exchange;  // hierarchical.cc

  struct Reduction;  // hierarchical_reduce.cc

  void barrier(Schedule& schedule, const plugins::Collective& c);
  void allreduce(Schedule& schedule, const plugins::Collective& c);
  void allreduce_in_chunks(Schedule& schedule, const plugins::Collective& c, uint64_t number);
  void reduce(Schedule& schedule, const plugins::Collective& c);
  void reducescatter(Schedule& schedule, const plugins::Collective& c);
  void broadcast(Schedule& schedule, const plugins::Collective& c);
  void allgather(Schedule& schedule, const plugins::Collective& c);
  void alltoall(Schedule& schedule, const plugins::Collective& c);

  void within_hosts(Schedule& schedule, Reduction& r);
  void between_hosts(Schedule& schedule, Reduction& r);
  hvd_buf first_level(Schedule& schedule, const plugins::Collective& c, const TwoLevels& levels, const Slices& slices,
                      hvd_buf to);
  hvd_buf finish(Schedule& schedule, const TwoLevels& levels, hvd_buf sums, uint64_t n, hvd_buf out);
  void spread(Schedule& schedule, const plugins::Collective& c, const Slices& slices, hvd_buf result);
  void gather_slices(Schedule& schedule, const plugins::Collective& c, const Slices& slices,
                     const std::function<hvd_buf(size_t, uint64_t)>& mine);
  void scatter_first(Schedule& schedule, const plugins::Collective& c, const TwoLevels& levels,
                     const std::vector<uint64_t>& at, hvd_buf kept);
  void exchange_counts(Schedule& schedule, const std::shared_ptr<Exchange>& x);
  void check_counts(const Exchange& x) const;
  void exchange_data(Schedule& schedule, const std::shared_ptr<Exchange>& x);
  void sort_by_host(const Exchange& x, const std::vector<hvd_buf>& by_rank, const std::vector<hvd_buf>& by_host,
                    bool inputs);

  // A collective to fill in and pass to write_steps(): without buffers, with the settings that all steps of `c` share.
  plugins::Collective& step(const plugins::Collective& c, int32_t coll);
  // Adds a buffer to a step. add_row() adds its counts per rank, which the caller fills in.
  static void add(plugins::Collective& step, hvd_buf in, hvd_buf out, uint64_t count);
  // Consecutive parts of `all`, of so many elements each.
  static std::vector<hvd_buf> packed_buffers(const hvd_buf& all, const std::vector<uint64_t>& counts, uint64_t width);
  static uint64_t* add_row(std::vector<uint64_t>& table, size_t ranks);

  size_t lanes_for(uint64_t bytes) const { return bytes <= settings_.single_lane_bytes ? 1 : lanes_; }
  bool in_lane(size_t lanes) const { return my_local_ < lanes; }
  const std::vector<int32_t>& members(size_t host) const { return layout_.hosts[host]; }
  // How many members of `host` the lane serves.
  size_t rounds(size_t host, size_t lane) const { return (members(host).size() + lanes_ - 1 - lane) / lanes_; }

  const Layout layout_;
  Lowering* const local_;
  Lowering* const cross_;
  const HostMath& math_;
  const Settings settings_;
  bool connected_ = false;  // a chunked allreduce has run: the communicators' first operations are over
  // Derived from the layout.
  const size_t ranks_, lanes_, hosts_, my_host_, my_local_, neighbours_;
  Hosts spread_{};
  std::vector<int32_t> host_order_;       // set ranks, host by host
  bool in_order_ = true;                  // host order is rank order
  std::vector<std::vector<Run>> runs_;    // by host
  std::vector<std::vector<int32_t>> of_;  // by lane: the ranks it serves (local index modulo lanes), in host order
  std::vector<size_t> place_;             // by rank: index within of_[its lane]
  plugins::Collective step_;
};

}  // namespace hvd::dataplane
