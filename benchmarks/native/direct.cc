// The limit for buffers that all ranks map: an allreduce (float32, sum, in place) that reads and writes the ranks'
// buffers themselves. Rank r adds up slice r of all buffers and writes the sum to all of them; the ranks meet before
// and after. Nothing passes through a slot. The benchmark tries several ways to touch the lines and keeps the best.
// Loaded by benchmarks/workers/native.py; one thread per rank, whose buffers lie in the mapping.
#include <cstring>

#include "spin.h"

namespace {

using hvd::bench::Line;

constexpr uint64_t kLargest = 256 << 20;  // bytes of one rank's buffer

struct Shared {
  alignas(hvd::bench::kBarrierBytes) char barrier_page[hvd::bench::kBarrierBytes];
  Line ready[hvd::bench::kMaxRanks], done[hvd::bench::kMaxRanks];
  alignas(2 << 20) char buffers[];
};

float* buffer(Shared* shared, int rank) { return reinterpret_cast<float*>(shared->buffers + rank * kLargest); }

void meet(Line* lines, int rank, int size, uint64_t epoch) {
  lines[rank].value.store(epoch, std::memory_order_release);
  for (int q = 0; q < size; q++) hvd::bench::wait_for(lines[q], epoch);
}

// Asks for `line` ahead of the store to it: a line of another core comes once, to be written, and not once to be read
// and once more to be written.
inline void will_write(const float* line) { __builtin_prefetch(line, 1); }

// Element by element.
void add_two(float* mine, float* other, uint64_t count, uint64_t ahead) {
  if (ahead == 0) {
#pragma GCC ivdep
    for (uint64_t i = 0; i < count; i++) mine[i] = other[i] = mine[i] + other[i];
    return;
  }
  constexpr uint64_t kLine = 16;
  for (uint64_t at = 0; at + kLine <= count; at += kLine) {
    will_write(other + at + ahead);
#pragma GCC ivdep
    for (uint64_t i = at; i < at + kLine; i++) mine[i] = other[i] = mine[i] + other[i];
  }
  for (uint64_t i = count & ~(kLine - 1); i < count; i++) mine[i] = other[i] = mine[i] + other[i];
}

// Block by block: adds all up in the own buffer, then copies the sums while they are in the first-level cache.
void add_all(float* const* all, int rank, int size, uint64_t count, uint64_t block, uint64_t ahead) {
  float* const sum = all[rank];
  for (uint64_t from = 0; from < count; from += block) {
    const uint64_t to = from + block < count ? from + block : count;
    for (int q = 0; q < size; q++) {
      if (q == rank) continue;
      const float* const other = all[q];
      for (uint64_t at = from; ahead && at < to; at += 16) will_write(other + at + ahead);
#pragma GCC ivdep
      for (uint64_t i = from; i < to; i++) sum[i] += other[i];
    }
    for (int q = 0; q < size; q++) {
      if (q != rank) std::memcpy(all[q] + from, sum + from, (to - from) * sizeof(float));
    }
  }
}

}  // namespace

extern "C" {

uint64_t direct_shared_bytes(int size) { return sizeof(Shared) + size * kLargest; }

uint64_t direct_largest() { return kLargest; }

void* direct_buffer(void* mapping, int rank) { return buffer(static_cast<Shared*>(mapping), rank); }

// The first `count` elements of each rank's buffer.
// `block`: bytes that are added up before they are copied; 0, for two ranks: no blocks. `ahead`: how many bytes ahead a
// line of another rank is asked for; 0: not.
void direct_once(void* mapping, int rank, int size, uint64_t count, uint64_t block, uint64_t ahead) {
  auto* shared = static_cast<Shared*>(mapping);
  const uint64_t epoch = shared->ready[rank].value.load(std::memory_order_relaxed) + 1;
  const auto begin = [&](int q) { return q == size ? count : (count * q / size) & ~uint64_t{15}; };
  const uint64_t from = begin(rank), to = begin(rank + 1);
  float* all[hvd::bench::kMaxRanks];
  for (int q = 0; q < size; q++) all[q] = buffer(shared, q) + from;
  meet(shared->ready, rank, size, epoch);
  if (size == 2 && block == 0)
    add_two(all[rank], all[1 - rank], to - from, ahead / sizeof(float));
  else
    add_all(all, rank, size, to - from, (block ? block : 8192) / sizeof(float), ahead / sizeof(float));
  meet(shared->done, rank, size, epoch);
}

void direct_timed(void* mapping, int rank, int size, float* data, uint64_t count, uint64_t block, uint64_t ahead,
                  int iters, int64_t* start, int64_t* end) {
  hvd::bench::timed_loop(*static_cast<hvd::bench::Barrier*>(mapping), rank, size, data, count, iters, start, end,
                         [&] { direct_once(mapping, rank, size, count, block, ahead); });
}
}
