// Operations that only move bytes between all pairs of ranks: allgather, alltoall, and broadcasts that are not small.
//
// Allgather and alltoall: each rank sends its part to each peer, in chunks, to all peers at a time, straight from and
// into the users' buffers. There is at least one message for each pair, if only a header: it carries the size, so ranks
// that disagree about it are told.
// Broadcast: the root cuts the whole into a slice for each other rank; a rank passes each chunk of its slice on to all
// other ranks (but the root) as it comes. Every rank receives the whole once, and no link carries it twice.
#include <cstring>

#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint32_t kPart = 1;  // slice: whose part of the whole this is (broadcast: who passes it on)

class Spread final : public Schedule {
 public:
  void begin(const ScheduleParams& params, Collective& collective) override {
    clear(params);
    params_ = params;
    collective_ = &collective;
    const uint32_t n = params.size;
    in_.resize(n);
    out_.resize(n);
    flows_in_.assign(n, {});
    flows_out_.assign(n, {});
    sent_.assign(n, 0);
    passes_on_ = false;
    if (collective.coll == HVD_BROADCAST) {
      begin_broadcast();
    } else {
      const bool gather = collective.coll == HVD_ALLGATHER;
      for (uint32_t r = 0; r < n; ++r) {
        if (!gather || r == 0) in_[r].open(collective.in[r]);
        out_[r].open(collective.out[r]);
        if (r == params.rank) continue;
        flows_out_[r] = {&in_[gather ? 0 : r], 0, {in_[gather ? 0 : r].bytes(), params.chunk}, params.rank};
        flows_in_[r] = {&out_[r], 0, {out_[r].bytes(), params.chunk}, r};
      }
    }
    for (uint32_t r = 0; r < n; ++r) {
      if (flows_out_[r].extent != nullptr) owe(r, messages(flows_out_[r]));
      if (flows_in_[r].extent != nullptr) expect(r, messages(flows_in_[r]));
    }
  }

  bool next(uint32_t peer, Message* m) override {
    const Flow& flow = flows_out_[peer];
    const uint64_t i = sent_[peer];
    if (flow.extent == nullptr || i >= messages(flow)) return false;
    if (passes_on_ && i >= passable_) return false;
    ++sent_[peer];
    const uint64_t at = i * flow.chunking.chunk;
    *m = {kPart, flow.slice, at, flow.chunking.total, {flow.extent, flow.base + at, flow.chunking.bytes(i)}};
    return true;
  }

  Verdict place(uint32_t peer, const Header& h, Payload* where) override {
    const Flow& flow = flows_in_[peer];
    const bool empty = flow.chunking.total == 0 && h.total == 0 && h.bytes == 0 && h.at == 0;
    if (h.kind != kPart || flow.extent == nullptr || h.slice != flow.slice || (!empty && !flow.chunking.fits(h))) {
      return Verdict::kWrong;
    }
    *where = {flow.extent, flow.base + h.at, h.bytes};
    return Verdict::kTake;
  }

  void finish() override {
    if (!collective_->own_copy && collective_->coll != HVD_ALLTOALL) return;
    if (collective_->coll == HVD_BROADCAST) return copy_extent(in_[0], 0, out_[0], 0, collective_->extent);
    const uint32_t me = params_.rank;
    const Extent& from = in_[collective_->coll == HVD_ALLGATHER ? 0 : me];
    copy_extent(from, 0, out_[me], 0, std::min(from.bytes(), out_[me].bytes()));
  }

 protected:
  void on_arrived(uint32_t peer, const Header& h) override {
    if (!passes_on_ || peer != root_) return;
    have_[h.at / params_.chunk] = true;
    while (passable_ < have_.size() && have_[passable_]) ++passable_;
  }

 private:
  struct Flow {
    const Extent* extent = nullptr;
    uint64_t base = 0;  // position of the part within the extent
    Chunking chunking = {};
    uint32_t slice = 0;
  };

  static uint64_t messages(const Flow& flow) { return std::max<uint64_t>(flow.chunking.count(), 1); }

  void begin_broadcast() {
    const uint32_t n = params_.size;
    root_ = static_cast<uint32_t>(collective_->root);
    in_[0].open(collective_->in[0]);
    out_[0].open(collective_->out[0]);
    const uint64_t slice = ((collective_->extent + n - 2) / (n - 1) + 63) / 64 * 64;
    const auto flow = [&](const Extent* extent, uint32_t r) {
      const uint64_t base = std::min(collective_->extent, slice * ((r + n - root_) % n - 1));
      return Flow{extent, base, {std::min(slice, collective_->extent - base), params_.chunk}, r};
    };
    passes_on_ = params_.rank != root_;
    for (uint32_t r = 0; r < n; ++r) {
      if (r == params_.rank || r == root_) continue;
      flows_out_[r] = passes_on_ ? flow(&out_[0], params_.rank) : flow(&in_[0], r);
      if (passes_on_) flows_in_[r] = flow(&out_[0], r);
    }
    if (!passes_on_) return;
    flows_in_[root_] = flow(&out_[0], params_.rank);
    have_.assign(messages(flows_in_[root_]), false);
    passable_ = 0;
  }

  ScheduleParams params_;
  Collective* collective_ = nullptr;
  std::vector<Extent> in_, out_;
  std::vector<Flow> flows_in_, flows_out_;  // by peer
  std::vector<uint64_t> sent_;              // messages, by peer
  uint32_t root_ = 0;
  bool passes_on_ = false;  // a broadcast, and not its root
  std::vector<bool> have_;  // chunks of this rank's slice that came from the root
  uint64_t passable_ = 0;   // chunks below are here
};

}  // namespace

std::unique_ptr<Schedule> make_spread() { return std::make_unique<Spread>(); }

}  // namespace hvd::tcp
