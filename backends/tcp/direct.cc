// Large reductions: each rank reduces one slice of the whole from all ranks' contributions, then sends the result.
// Allreduce (to all), reduce (to the root), reducescatter (keeps it).
//
// Contributions are reduced in rank order by one call of the kernel, so the result is rounded once and has the same
// bits as any other backend's that does so. Every rank sends and receives what a ring would, but in two hops.
//
// A slice goes in chunks. Those of chunk i wait in slot i % kWindow until all ranks' are there; results are received
// straight into the user's buffer, or leave from it, and take precedence over further contributions. A rank whose slots
// are full does not read on. That does not hold up the sender of the oldest missing chunk, since no message before that
// chunk on its connection needs a slot that is not free.
#include <cstring>

#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint32_t kContribution = 1, kResult = 2;  // slice: the rank that reduces it

class Direct final : public Schedule {
 public:
  void begin(const ScheduleParams& params, Collective& collective) override {
    clear(params);
    params_ = params;
    collective_ = &collective;
    const uint32_t n = params.size, me = params.rank;
    scatters_ = collective.coll == HVD_REDUCESCATTER;
    root_ = collective.coll == HVD_REDUCE ? static_cast<int32_t>(collective.root) : -1;
    open_extents();
    next_contribution_.assign(n, 0);
    next_result_.assign(n, 0);
    reduced_ = told_ = 0;
    waiting_.assign(kWindow, n - 1);
    slots_.resize(size_t{kWindow} * n);
    const uint64_t stride = params.chunk, slot_bytes = uint64_t{n} * stride;
    char* const staging = staging_.get(kWindow * slot_bytes);
    for (uint32_t w = 0; w < kWindow; ++w) {
      for (uint32_t r = 0; r < n; ++r) slots_[w * n + r].open(staging + w * slot_bytes + r * stride, stride);
    }
    sources_.resize(n);
    for (uint32_t r = 0; r < n; ++r) {
      if (r == me) continue;
      expect(r, chunking(me).count() + (gets_results(me) ? chunking(r).count() : 0));
      owe(r, chunking(r).count() + (gets_results(r) ? chunking(me).count() : 0));
    }
  }

  bool next(uint32_t peer, Message* m) override {
    const uint32_t me = params_.rank;
    if (gets_results(peer) && next_result_[peer] < reduced_) {
      const uint64_t i = next_result_[peer]++, at = i * params_.chunk, bytes = chunking(me).bytes(i);
      *m = {kResult, me, at, chunking(me).total, result(i, at, bytes)};
      return true;
    }
    const uint64_t i = next_contribution_[peer];
    if (i >= chunking(peer).count()) return false;
    ++next_contribution_[peer];
    const uint64_t at = i * params_.chunk;
    *m = {kContribution, peer, at, chunking(peer).total, {in_of(peer), base(peer) + at, chunking(peer).bytes(i)}};
    return true;
  }

  Verdict place(uint32_t peer, const Header& h, Payload* where) override {
    const uint32_t me = params_.rank;
    if (h.kind == kResult) {
      if (h.slice != peer || !gets_results(me) || !chunking(peer).fits(h)) return Verdict::kWrong;
      *where = {&out_, base(peer) + h.at, h.bytes};
      return Verdict::kTake;
    }
    if (h.kind != kContribution || h.slice != me || !chunking(me).fits(h)) return Verdict::kWrong;
    const uint64_t i = h.at / params_.chunk;
    if (i < reduced_) return Verdict::kWrong;
    if (i >= (holds_results() ? told_ : reduced_) + kWindow) return Verdict::kLater;
    *where = {&slots_[i % kWindow * params_.size + peer], 0, h.bytes};
    return Verdict::kTake;
  }

  void finish() override {
    if (whole_ != nullptr && collective_->own_copy && !scatters_) out_user_.scatter(0, collective_->extent, whole_);
  }

 protected:
  void on_arrived(uint32_t, const Header& h) override {
    if (h.kind != kContribution) return;
    --waiting_[h.at / params_.chunk % kWindow];
    while (reduced_ < chunking(params_.rank).count() && waiting_[reduced_ % kWindow] == 0) {
      reduce(reduced_);
      waiting_[reduced_ % kWindow] = params_.size - 1;
      ++reduced_;
    }
  }

  void on_sent(uint32_t, const Message& m) override {
    if (m.kind == kResult && holds_results()) ++told_;  // to the root, the only one
  }

 private:
  // Many tiny buffers are gathered once, worked on in one span, and scattered once.
  void open_extents() {
    Collective& collective = *collective_;
    const uint32_t n = params_.size;
    ins_.resize(n);
    whole_ = nullptr;
    if (scatters_) {
      for (uint32_t r = 0; r < n; ++r) ins_[r].open(collective.in[r]);
      out_.open(collective.out[0]);
      return;
    }
    slice_ = ((collective.extent + n - 1) / n + 63) / 64 * 64;
    ins_[0].open(collective.in[0]);
    out_user_.open(collective.out[0]);
    if (!collective.packed) {
      out_.open(collective.out[0]);
      return;
    }
    whole_ = flat_.get(collective.extent);
    ins_[0].gather(0, collective.extent, whole_);
    ins_[0].open(whole_, collective.extent);
    out_.open(whole_, collective.extent);
  }

  uint64_t base(uint32_t r) const { return scatters_ ? 0 : std::min(collective_->extent, r * slice_); }
  Chunking chunking(uint32_t r) const {
    const uint64_t total =
        scatters_ ? collective_->in[r].bytes : std::min(collective_->extent, (r + 1) * slice_) - base(r);
    return {total, params_.chunk};
  }
  const Extent* in_of(uint32_t r) const { return &ins_[scatters_ ? r : 0]; }
  bool gets_results(uint32_t r) const { return !scatters_ && (root_ < 0 || r == static_cast<uint32_t>(root_)); }
  // Where this rank's results are not wanted in its own output they stay in the slot until they have been sent.
  bool holds_results() const { return !collective_->own_copy && whole_ == nullptr; }
  Payload result(uint64_t i, uint64_t at, uint64_t bytes) const {
    if (holds_results()) return {&slots_[i % kWindow * params_.size + params_.rank], 0, bytes};
    return {&out_, base(params_.rank) + at, bytes};
  }

  void reduce(uint64_t i) {
    const uint32_t n = params_.size, me = params_.rank;
    const uint64_t at = i * params_.chunk, bytes = chunking(me).bytes(i);
    const uint64_t in_at = base(me) + at, out_at = scatters_ ? at : in_at;
    const Extent* slots = &slots_[i % kWindow * n];
    for (uint64_t done = 0; done < bytes;) {
      const Span own = in_of(me)->run(in_at + done, bytes - done);
      for (uint32_t r = 0; r < n; ++r) {
        if (r != me) sources_[r] = slots[r].run(done, own.bytes).p;
      }
      sources_[me] = own.p;
      // Input and output have the same counts, hence the same runs.
      char* to = holds_results() ? slots[me].run(done, own.bytes).p : out_.run(out_at + done, own.bytes).p;
      collective_->reduce(to, sources_.data(), n, own.bytes / collective_->elem, collective_->scale);
      done += own.bytes;
    }
  }

  ScheduleParams params_;
  Collective* collective_ = nullptr;
  bool scatters_ = false;
  int32_t root_ = -1;
  uint64_t slice_ = 0;       // bytes of a rank's slice, but for the last ones
  std::vector<Extent> ins_;  // one for each rank's slice, or one for all
  Extent out_, out_user_;
  Scratch flat_;
  char* whole_ = nullptr;                                  // in flat_
  std::vector<uint64_t> next_contribution_, next_result_;  // chunks, by peer
  uint64_t reduced_ = 0;                                   // chunks of this rank's slice that are
  uint64_t told_ = 0;                                      // of them sent to the root
  std::vector<uint32_t> waiting_;                          // contributions still to come, by slot
  Scratch staging_;
  std::vector<Extent> slots_;  // kWindow x ranks
  std::vector<const void*> sources_;
};

}  // namespace

std::unique_ptr<Schedule> make_direct() { return std::make_unique<Direct>(); }

}  // namespace hvd::tcp
