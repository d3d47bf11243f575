// The limit for buffers that all ranks map: an allreduce (float32, sum, in place) that reads and writes the ranks'
// buffers themselves. Rank r adds up slice r of all buffers and writes the sum to all of them; the ranks meet before
// and after. Nothing is copied. Loaded by benchmarks/workers/native.py; one thread per rank, whose buffers lie in the
// mapping.
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

void add_two(float* x, float* y, uint64_t count) {
#pragma GCC ivdep
  for (uint64_t i = 0; i < count; i++) x[i] = y[i] = x[i] + y[i];
}

void add_all(float* const* all, int size, uint64_t count) {
  constexpr uint64_t kBlock = 1024;
  for (uint64_t from = 0; from < count; from += kBlock) {
    const uint64_t to = from + kBlock < count ? from + kBlock : count;
    float* sum = all[0];
    for (int q = 1; q < size; q++) {
      float* other = all[q];
#pragma GCC ivdep
      for (uint64_t i = from; i < to; i++) sum[i] += other[i];
    }
    for (int q = 1; q < size; q++) {
      float* other = all[q];
#pragma GCC ivdep
      for (uint64_t i = from; i < to; i++) other[i] = sum[i];
    }
  }
}

}  // namespace

extern "C" {

uint64_t direct_shared_bytes(int size) { return sizeof(Shared) + size * kLargest; }

uint64_t direct_largest() { return kLargest; }

void* direct_buffer(void* mapping, int rank) { return buffer(static_cast<Shared*>(mapping), rank); }

// The first `count` elements of each rank's buffer.
void direct_once(void* mapping, int rank, int size, uint64_t count) {
  auto* shared = static_cast<Shared*>(mapping);
  const uint64_t epoch = shared->ready[rank].value.load(std::memory_order_relaxed) + 1;
  const auto begin = [&](int q) { return q == size ? count : (count * q / size) & ~uint64_t{15}; };
  const uint64_t from = begin(rank), to = begin(rank + 1);
  float* all[hvd::bench::kMaxRanks];
  for (int q = 0; q < size; q++) all[q] = buffer(shared, q) + from;
  meet(shared->ready, rank, size, epoch);
  if (size == 2)
    add_two(all[0], all[1], to - from);
  else
    add_all(all, size, to - from);
  meet(shared->done, rank, size, epoch);
}

void direct_timed(void* mapping, int rank, int size, float* data, uint64_t count, int iters, int64_t* start,
                  int64_t* end) {
  hvd::bench::timed_loop(*static_cast<hvd::bench::Barrier*>(mapping), rank, size, data, count, iters, start, end,
                         [&] { direct_once(mapping, rank, size, count); });
}
}
