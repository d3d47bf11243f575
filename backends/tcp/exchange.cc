// Small operations: everybody gets everybody's data, then works alone. Allreduce, reduce, allgather, barrier.
//
// In step s a rank passes what it has, which is the blocks of itself and the 2^s - 1 ranks after it, to the rank 2^s
// before it; after ceil(log2 n) steps all have all, for any n. The blocks stand in scratch memory beginning with this
// rank's own, so what a step sends and receives is contiguous. Then each rank reduces all blocks in rank order: the
// same bits everywhere, rounded once.
#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint32_t kStep = 1;  // kind; slice: number of the step

class Exchange final : public Schedule {
 public:
  void begin(const Room& room, Plan& plan) override {
    clear(room);
    room_ = room;
    plan_ = &plan;
    steps_.clear();
    arrived_.assign(64, false);
    ready_ = 0;
    offsets_.assign(size_t{room.size} + 1, 0);
    for (uint32_t i = 0; i < room.size; ++i) offsets_[i + 1] = offsets_[i] + block_bytes(rank_at(i));
    blocks_ = scratch_.get(offsets_[room.size]);
    all_.open(blocks_, offsets_[room.size]);
    own_.open(plan.in[0]);
    own_.gather(0, offsets_[1], blocks_);
    for (uint32_t d = 1; d < room.size; d *= 2) {
      steps_.push_back({rank_at(room.size - d), rank_at(d), d, std::min(d, room.size - d), false});
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
    Plan& plan = *plan_;
    if (plan.coll == HVD_ALLGATHER) {
      for (uint32_t i = plan.own_copy ? 0 : 1; i < room_.size; ++i) {
        Extent out;
        out.open(plan.out[rank_at(i)]);
        out.scatter(0, out.bytes(), blocks_ + offsets_[i]);
      }
      return;
    }
    if (plan.reduce == nullptr || !plan.own_copy || plan.extent == 0) return;
    sources_.resize(room_.size);
    for (uint32_t i = 0; i < room_.size; ++i) sources_[rank_at(i)] = blocks_ + offsets_[i];
    Extent out;
    out.open(plan.out[0]);
    const Piece first = out.run(0, plan.extent);
    const uint64_t n = plan.extent / plan.elem;
    if (first.bytes == plan.extent) {
      plan.reduce(first.p, sources_.data(), room_.size, n, plan.scale);
      return;
    }
    // Over this rank's own block, which a kernel may do.
    plan.reduce(blocks_, sources_.data(), room_.size, n, plan.scale);
    out.scatter(0, plan.extent, blocks_);
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

  uint32_t rank_at(uint32_t distance) const { return (room_.rank + distance) % room_.size; }
  uint64_t block_bytes(uint32_t r) const {
    if (plan_->barrier) return 0;
    return plan_->coll == HVD_ALLGATHER ? plan_->out[r].bytes : plan_->extent;
  }

  Room room_;
  Plan* plan_ = nullptr;
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
