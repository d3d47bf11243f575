// The limit the engine is measured against: an allreduce (float32, sum, in place) between pinned processes that does
// nothing but copy, add and spin on flags in shared memory. No names, no types, no errors, no sleeping, no checks:
// each of these costs a real engine time on top of this. Loaded by benchmarks/workers/native.py; one thread per rank.
//
// Two schemes. One hop: every rank publishes its whole buffer and adds all of them up itself. Sliced: the buffer goes
// through the slots in chunks; rank r hands out the slices that others own, reduces slice r of all ranks into its own
// buffer and into a slot, and copies the other slices back. The benchmark tries chunk sizes and keeps the best.
#include <cstring>

#include "spin.h"

namespace hvd::bench {
namespace {

constexpr uint64_t kSmallBytes = 32 * 1024;
constexpr int kSlots = 3;
constexpr uint64_t kMaxChunk = 1 << 20;  // bytes

struct SmallSlot {
  Line flag[2];  // tiny payloads travel in the flag's own line: one cache miss instead of two
  alignas(128) char data[2][kSmallBytes];
};

struct Shared {
  alignas(kBarrierBytes) char barrier_page[kBarrierBytes];
  Line handed[kMaxRanks];   // chunks whose foreign slices rank r has handed out
  Line reduced[kMaxRanks];  // chunks whose slice r is reduced
  SmallSlot small[kMaxRanks];
  alignas(4096) char slots[];  // [rank][slot] of kMaxChunk bytes; with more than two ranks as many again for results
};

constexpr uint64_t kInline = sizeof(Line) - sizeof(std::atomic<uint64_t>);

struct Slices {  // how a chunk of `count` elements is cut; boundaries on cache lines
  uint64_t count;
  int size;
  uint64_t begin(int q) const { return q == size ? count : (count * q / size) & ~uint64_t{15}; }
};

class Loop {
 public:
  Loop(Shared* shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}

  // chunk_bytes 0 asks for the one-hop scheme, which takes at most kSmallBytes.
  void allreduce(float* data, uint64_t count, uint64_t chunk_bytes) {
    if (chunk_bytes) {
      reduce_large(data, count, chunk_bytes / 4);
    } else if (count * 4 <= kInline) {
      reduce_tiny(data, count);
    } else {
      reduce_small(data, count);
    }
  }

 private:
  void reduce_tiny(float* data, uint64_t count) {
    int s = ++small_epoch_ & 1;
    Line& mine = shared_->small[rank_].flag[s];
    std::memcpy(inline_data(mine), data, count * 4);
    mine.value.store(small_epoch_, std::memory_order_release);
    for (int q = 0; q < size_; q++) {
      if (q == rank_) continue;
      Line& theirs = shared_->small[q].flag[s];
      wait_for(theirs, small_epoch_);
      const float* other = inline_data(theirs);
      for (uint64_t k = 0; k < count; k++) data[k] += other[k];
    }
  }

  void reduce_small(float* data, uint64_t count) {
    int s = ++small_epoch_ & 1;
    SmallSlot& mine = shared_->small[rank_];
    std::memcpy(mine.data[s], data, count * 4);
    mine.flag[s].value.store(small_epoch_, std::memory_order_release);
    for (int q = 0; q < size_; q++) {
      if (q == rank_) continue;
      wait_for(shared_->small[q].flag[s], small_epoch_);
      add(data, reinterpret_cast<const float*>(shared_->small[q].data[s]), count);
    }
  }

  // Step k hands out chunk k, reduces chunk k-1 and collects chunk k-2. With three slots nothing else needs guarding:
  // at step k a rank has collected chunk k-3, and the peers' hand-out of chunk k-1, awaited before reducing it, shows
  // that they had collected chunk k-4.
  void reduce_large(float* data, uint64_t count, uint64_t chunk) {
    uint64_t chunks = (count + chunk - 1) / chunk;
    for (uint64_t k = 0; k < chunks + 2; k++) {
      if (k < chunks) hand_out(data, count, chunk, k);
      if (k >= 1 && k - 1 < chunks) reduce(data, count, chunk, k - 1);
      if (k >= 2) collect(data, count, chunk, k - 2);
    }
    done_ += chunks;  // counters go on across calls, and so does the argument above
  }

  void hand_out(const float* data, uint64_t count, uint64_t chunk, uint64_t k) {
    uint64_t first = k * chunk;
    Slices cut{count - first < chunk ? count - first : chunk, size_};
    float* mine = slot(rank_, k);
    for (int q = 0; q < size_; q++) {
      if (q == rank_) continue;
      uint64_t b = cut.begin(q), e = cut.begin(q + 1);
      std::memcpy(mine + b, data + first + b, (e - b) * 4);
    }
    shared_->handed[rank_].value.store(done_ + k + 1, std::memory_order_release);
  }

  void reduce(float* data, uint64_t count, uint64_t chunk, uint64_t k) {
    uint64_t first = k * chunk;
    Slices cut{count - first < chunk ? count - first : chunk, size_};
    uint64_t b = cut.begin(rank_), e = cut.begin(rank_ + 1);
    float* own = data + first;
    float* result = result_slot(rank_, k);
    int last = rank_ == size_ - 1 ? size_ - 2 : size_ - 1;
    for (int q = 0; q < size_; q++) {
      if (q == rank_) continue;
      wait_for(shared_->handed[q], done_ + k + 1);
      const float* other = slot(q, k);
      if (q == last) {
        add_twice(own + b, other + b, result + b, e - b);
      } else {
        add(own + b, other + b, e - b);
      }
    }
    shared_->reduced[rank_].value.store(done_ + k + 1, std::memory_order_release);
  }

  void collect(float* data, uint64_t count, uint64_t chunk, uint64_t k) {
    uint64_t first = k * chunk;
    Slices cut{count - first < chunk ? count - first : chunk, size_};
    for (int q = 0; q < size_; q++) {
      if (q == rank_) continue;
      wait_for(shared_->reduced[q], done_ + k + 1);
      uint64_t b = cut.begin(q), e = cut.begin(q + 1);
      std::memcpy(data + first + b, result_slot(q, k) + b, (e - b) * 4);
    }
  }

  static void add(float* __restrict own, const float* __restrict other, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) own[i] += other[i];
  }

  // `other` and `result` may be the same memory, element by element.
  static void add_twice(float* __restrict own, const float* other, float* result, uint64_t count) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; i++) own[i] = result[i] = own[i] + other[i];
  }

  static float* inline_data(Line& line) { return reinterpret_cast<float*>(&line.value + 1); }

  float* slot(int q, uint64_t k) {
    return reinterpret_cast<float*>(shared_->slots + (q * kSlots + (done_ + k) % kSlots) * kMaxChunk);
  }

  // Two ranks: back into the peer's slot, over what was read there. The lines then move from one core to the other and
  // back, instead of missing in two sets of lines: half as fast again. More ranks read a result each at its own pace,
  // so it needs room of its own.
  float* result_slot(int reducer, uint64_t k) { return slot(size_ == 2 ? 1 - reducer : size_ + reducer, k); }

  Shared* shared_;
  int rank_, size_;
  uint64_t small_epoch_ = 0, done_ = 0;
};

}  // namespace
}  // namespace hvd::bench

extern "C" {

uint64_t bare_shared_bytes(int size) {
  return sizeof(hvd::bench::Shared) + (size == 2 ? 2 : uint64_t{2} * size) * hvd::bench::kSlots * hvd::bench::kMaxChunk;
}

void* bare_open(void* mapping, int rank, int size) {
  return new hvd::bench::Loop(static_cast<hvd::bench::Shared*>(mapping), rank, size);
}

void bare_once(void* loop, float* data, uint64_t count, uint64_t chunk_bytes) {
  static_cast<hvd::bench::Loop*>(loop)->allreduce(data, count, chunk_bytes);
}

void bare_timed(void* loop, void* mapping, int rank, int size, float* data, uint64_t count, uint64_t chunk_bytes,
                int iters, int64_t* start, int64_t* end) {
  auto* bare = static_cast<hvd::bench::Loop*>(loop);
  hvd::bench::timed_loop(*static_cast<hvd::bench::Barrier*>(mapping), rank, size, data, count, iters, start, end,
                         [&] { bare->allreduce(data, count, chunk_bytes); });
}
}
