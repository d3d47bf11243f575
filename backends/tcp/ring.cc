// Large allreduces of many ranks: around a ring, so that each rank talks to two neighbours however many there are.
//
// The whole is divided into waves, and each wave into a slice per rank. The partial result of slice s starts at rank s
// + 1, travels upwards, each rank adding its own data, and is complete at rank s; the result travels around in the same
// way. So the order of a reduction is s + 1, s + 2, ..., s: the same bits on all ranks, but not those of rank order.
// 16-bit floats and averages of integers, which would be rounded or wrap at each rank, are never sent here; see
// choose.cc.
//
// A rank starts wave w + kWindow when it has passed on all partial results of wave w. There is a slot for each
// partial result of a wave, so nothing that was sent is ever kept waiting for space, and the ring cannot lock up.
#include <cstring>

#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint32_t kPartial = 1, kWaveResult = 2;  // slice; at: position of the wave within each slice

class Ring final : public Schedule {
 public:
  void begin(const ScheduleParams& params, Collective& collective) override {
    clear(params);
    params_ = params;
    collective_ = &collective;
    const uint32_t n = params.size;
    from_ = (params.rank + n - 1) % n;
    to_ = (params.rank + 1) % n;
    begun_ = from_;
    open_extents();
    slice_ = ((collective.extent + n - 1) / n + 63) / 64 * 64;
    waves_ = (slice_ + params.chunk - 1) / params.chunk;
    first_only_ = collective.scale;
    first_only_.post = 1.0;
    first_only_.divisor = 1;
    last_only_ = collective.scale;
    last_only_.pre = 1.0;
    neither_ = {};
    char* staging = staging_.get((uint64_t{kWindow} * (n - 1) + 1) * params.chunk);
    slots_.resize(size_t{kWindow} * (n - 1));
    for (Extent& slot : slots_) {
      slot.open(staging, params.chunk);
      staging += params.chunk;
    }
    scaled_ = staging;
    // Slots of the wave that holds them: partial results passed on, and the one that ends here.
    passed_.assign(kWindow, 0);
    started_ = finished_ = 0;
    ready_.clear();
    uint64_t in = 0, out = 0;
    for (uint64_t w = 0; w < waves_; ++w) {
      for (uint32_t s = 0; s < n; ++s) {
        if (chunking(s).bytes(w) == 0) continue;
        in += (s != begun_ ? 1 : 0) + (s != params.rank ? 1 : 0);
        out += (s != params.rank ? 1 : 0) + (s != to_ ? 1 : 0);
      }
    }
    expect(from_, in);
    owe(to_, out);
    for (started_ = 0; started_ < std::min<uint64_t>(kWindow, waves_); ++started_) start(started_);
    settle();
  }

  bool next(uint32_t peer, Message* m) override {
    if (peer != to_ || head_ == ready_.size()) return false;
    *m = ready_[head_++];
    if (head_ == ready_.size()) {
      ready_.clear();
      head_ = 0;
    }
    return true;
  }

  Verdict place(uint32_t peer, const Header& h, Payload* where) override {
    const uint32_t s = h.slice;
    if (peer != from_ || s >= params_.size || !chunking(s).fits(h)) return Verdict::kWrong;
    const uint64_t w = h.at / params_.chunk;
    if (h.kind == kWaveResult && s != params_.rank) {
      *where = {&out_, base(s) + h.at, h.bytes};
      return Verdict::kTake;
    }
    // Not the one that started here, which would have gone all the way around.
    if (h.kind != kPartial || s == begun_ || w < finished_) return Verdict::kWrong;
    if (w >= finished_ + kWindow) return Verdict::kLater;
    *where = {slot(w, s), 0, h.bytes};
    return Verdict::kTake;
  }

  void finish() override {
    if (whole_ != nullptr) out_user_.scatter(0, collective_->extent, whole_);
  }

 protected:
  void on_arrived(uint32_t, const Header& h) override {
    const uint32_t s = h.slice;
    const uint64_t w = h.at / params_.chunk;
    if (h.kind == kWaveResult) {
      if (s != to_) ready_.push_back({kWaveResult, s, h.at, h.total, {&out_, base(s) + h.at, h.bytes}});
      return;
    }
    combine(s, w);
    if (s == params_.rank) {
      ready_.push_back({kWaveResult, s, h.at, h.total, {&out_, base(s) + h.at, h.bytes}});
      count(w);
    } else {
      ready_.push_back({kPartial, s, h.at, h.total, {slot(w, s), 0, h.bytes}});
    }
  }

  void on_sent(uint32_t, const Message& m) override {
    if (m.kind == kPartial && m.slice != begun_) count(m.at / params_.chunk);
  }

 private:
  uint64_t base(uint32_t s) const { return std::min(collective_->extent, s * slice_); }
  Chunking chunking(uint32_t s) const {
    return {std::min(collective_->extent, (s + 1) * slice_) - base(s), params_.chunk};
  }
  // Of the n - 1 partial results that come here, by slice.
  Extent* slot(uint64_t w, uint32_t s) {
    const uint32_t i = s < begun_ ? s : s - 1;
    return &slots_[w % kWindow * (params_.size - 1) + i];
  }

  void open_extents() {
    in_.open(collective_->in[0]);
    out_user_.open(collective_->out[0]);
    out_.open(collective_->out[0]);
    whole_ = nullptr;
    head_ = 0;
    if (!collective_->packed) return;
    whole_ = flat_.get(collective_->extent);
    in_.gather(0, collective_->extent, whole_);
    in_.open(whole_, collective_->extent);
    out_.open(whole_, collective_->extent);
  }

  // This rank's own data, as far as a partial result begins with it.
  void start(uint64_t w) {
    const uint32_t s = begun_;
    const uint64_t at = w * params_.chunk, bytes = chunking(s).bytes(w);
    if (bytes == 0) return;
    ready_.push_back({kPartial, s, at, chunking(s).total, {&in_, base(s) + at, bytes}});
  }

  // Partial result op own data, in the slot; the last rank's result goes to its place.
  void combine(uint32_t s, uint64_t w) {
    const uint64_t at = w * params_.chunk, bytes = chunking(s).bytes(w), from = base(s) + at;
    const bool last = s == params_.rank, first = s == (from_ + params_.size - 1) % params_.size;
    const Extent* const partial = slot(w, s);
    for (uint64_t done = 0; done < bytes;) {
      const Span own = in_.run(from + done, bytes - done);
      const uint64_t n = own.bytes / collective_->elem;
      const void* sources[2] = {partial->run(done, own.bytes).p, own.p};
      char* const to = last ? out_.run(from + done, own.bytes).p : partial->run(done, own.bytes).p;
      // The kernels scale all sources alike. Both are unscaled only where the partial result is one rank's raw data.
      if (collective_->scale.pre != 1.0 && !first) {
        const void* raw = own.p;
        collective_->reduce(scaled_, &raw, 1, n, first_only_);
        sources[1] = scaled_;
      }
      Scale scale = last ? last_only_ : neither_;
      if (first) scale.pre = collective_->scale.pre;
      collective_->reduce(to, sources, 2, n, scale);
      done += own.bytes;
    }
  }

  // One more of the wave's slots has done its work.
  void count(uint64_t w) {
    ++passed_[w % kWindow];
    settle();
  }

  // Ends waves in order, and starts as many others.
  void settle() {
    while (finished_ < waves_ && finished_ < started_ && passed_[finished_ % kWindow] == due(finished_)) {
      passed_[finished_ % kWindow] = 0;
      ++finished_;
      if (started_ < waves_) start(started_++);
    }
  }

  // Partial results of wave w that come here.
  uint32_t due(uint64_t w) const {
    uint32_t n = 0;
    for (uint32_t s = 0; s < params_.size; ++s) n += s != begun_ && chunking(s).bytes(w) > 0;
    return n;
  }

  ScheduleParams params_;
  Collective* collective_ = nullptr;
  uint32_t from_ = 0, to_ = 0;  // neighbours
  uint32_t begun_ = 0;          // the slice whose partial result starts here
  uint64_t slice_ = 0, waves_ = 0;
  Extent in_, out_, out_user_;
  Scratch staging_, flat_;
  char* whole_ = nullptr;   // in flat_: many tiny buffers in one span
  char* scaled_ = nullptr;  // in staging_: space for one chunk of this rank's own data
  std::vector<Extent> slots_;
  std::vector<uint32_t> passed_;         // by wave modulo kWindow
  uint64_t started_ = 0, finished_ = 0;  // waves
  std::vector<Message> ready_;           // to be sent, from head_ on
  size_t head_ = 0;
  Scale first_only_, last_only_, neither_;
};

}  // namespace

std::unique_ptr<Schedule> make_ring() { return std::make_unique<Ring>(); }

}  // namespace hvd::tcp
