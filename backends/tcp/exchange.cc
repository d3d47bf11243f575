// Small operations: every rank gets all ranks' data, then works alone. Allreduce, reduce, allgather, barrier.
//
// In step s a rank passes its blocks, which are those of itself and the 2^s - 1 ranks after it, to the rank 2^s before
// it; after ceil(log2 n) steps every rank has all blocks, for any n. The blocks stand in scratch memory beginning with
// this rank's own, so what a step sends and receives is contiguous. Then each rank reduces all blocks in rank order:
// the same bits everywhere, rounded once.
#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint32_t kStep = 1;  // kind; slice: number of the step

class Exchange final : public Schedule {
 public:
  void begin(const ScheduleParams& params, Collective& collective) override {
    clear(params);
    params_ = params;
    collective_ = &collective;
    steps_.clear();
    arrived_.assign(64, false);
    ready_ = 0;
    offsets_.assign(size_t{params.size} + 1, 0);
    for (uint32_t i = 0; i < params.size; ++i) offsets_[i + 1] = offsets_[i] + block_bytes(rank_at(i));
    blocks_ = scratch_.get(offsets_[params.size]);
    all_.open(blocks_, offsets_[params.size]);
    own_.open(collective.in[0]);
    own_.gather(0, offsets_[1], blocks_);
    for (uint32_t d = 1; d < params.size; d *= 2) {
      steps_.push_back({rank_at(params.size - d), rank_at(d), d, std::min(d, params.size - d), false});
      owe(steps_.back().to, 1);
      expect(steps_.back().from, 1);
    }
  }

  bool next(uint32_t peer, Message* m) override {
    for (uint32_t s = 0; s <= ready_ && s < steps_.size(); ++s) {
      Step& step = steps_[s];
      if (step.to != peer || step.taken) continue;
      step.taken = true;
      const uint64_t bytes = offsets_[step.blocks];
      *m = {kStep, s, 0, bytes, {&all_, 0, bytes}};
      return true;
    }
    return false;
  }

  Verdict place(uint32_t peer, const Header& h, Payload* where) override {
    if (h.kind != kStep || h.slice >= steps_.size()) return Verdict::kWrong;
    const Step& step = steps_[h.slice];
    const uint64_t from = offsets_[step.distance], bytes = offsets_[step.distance + step.blocks] - from;
    if (step.from != peer || arrived_[h.slice] || h.bytes != bytes || h.total != bytes) return Verdict::kWrong;
    *where = {&all_, from, bytes};
    return Verdict::kTake;
  }

  void finish() override {
    Collective& collective = *collective_;
    if (collective.coll == HVD_ALLGATHER) {
      for (uint32_t i = collective.own_copy ? 0 : 1; i < params_.size; ++i) {
        Extent out;
        out.open(collective.out[rank_at(i)]);
        out.scatter(0, out.bytes(), blocks_ + offsets_[i]);
      }
      return;
    }
    if (collective.reduce == nullptr || !collective.own_copy || collective.extent == 0) return;
    sources_.resize(params_.size);
    for (uint32_t i = 0; i < params_.size; ++i) sources_[rank_at(i)] = blocks_ + offsets_[i];
    Extent out;
    out.open(collective.out[0]);
    const Span first = out.run(0, collective.extent);
    const uint64_t n = collective.extent / collective.elem;
    if (first.bytes == collective.extent) {
      collective.reduce(first.p, sources_.data(), params_.size, n, collective.scale);
      return;
    }
    // Over this rank's own block, which a kernel may do.
    collective.reduce(blocks_, sources_.data(), params_.size, n, collective.scale);
    out.scatter(0, collective.extent, blocks_);
  }

 protected:
  void on_arrived(uint32_t, const Header& h) override {
    arrived_[h.slice] = true;
    while (ready_ < steps_.size() && arrived_[ready_]) ++ready_;
  }

 private:
  struct Step {
    uint32_t to, from, distance, blocks;
    bool taken;
  };

  uint32_t rank_at(uint32_t distance) const { return (params_.rank + distance) % params_.size; }
  uint64_t block_bytes(uint32_t r) const {
    if (collective_->barrier) return 0;
    return collective_->coll == HVD_ALLGATHER ? collective_->out[r].bytes : collective_->extent;
  }

  ScheduleParams params_;
  Collective* collective_ = nullptr;
  std::vector<Step> steps_;
  std::vector<bool> arrived_;
  uint32_t ready_ = 0;             // steps below have arrived
  std::vector<uint64_t> offsets_;  // of the blocks in scratch memory, by distance from this rank
  Scratch scratch_;
  char* blocks_ = nullptr;
  std::vector<const void*> sources_;
  Extent all_, own_;
};

}  // namespace

std::unique_ptr<Schedule> make_exchange() { return std::make_unique<Exchange>(); }

}  // namespace hvd::tcp
