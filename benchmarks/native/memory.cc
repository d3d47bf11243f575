// The speed of the machine's memory, measured beside the allreduces: the limit of the limit. Loaded by
// benchmarks/workers/native.py; every rank runs the same pass at the same time on its own pinned core.
#include <cstring>

#include "spin.h"

namespace {

constexpr int kSlots = 3;

struct Exchange {  // after the barrier page
  hvd::bench::Line handed[hvd::bench::kMaxRanks], returned[hvd::bench::kMaxRanks];
  alignas(4096) float slots[hvd::bench::kMaxRanks][kSlots][1 << 16];
};

void write(float* __restrict slot, uint64_t elements, float value) {
  for (uint64_t j = 0; j < elements; j++) slot[j] = value;
}

void update(float* __restrict slot, uint64_t elements) {
  for (uint64_t j = 0; j < elements; j++) slot[j] += 1.0f;
}

float read(const float* slot, uint64_t elements) {
  float lanes[64] = {};
  for (uint64_t j = 0; j + 64 <= elements; j += 64) {
    for (int lane = 0; lane < 64; lane++) lanes[lane] += slot[j + lane];
  }
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

extern "C" {

uint64_t memory_shared_bytes() { return hvd::bench::kBarrierBytes + sizeof(Exchange); }

// How fast data goes from core to core and back: every rank writes chunks into slots of its own, updates those of its
// right neighbour in place, and reads its own again, all ranks at once and within the caches. This is an allreduce
// without the buffers: two ranks that sum n bytes cannot move less than n/2 over and n/2 back.
void memory_exchange(void* mapping, int rank, int size, uint64_t chunk_bytes, uint64_t chunks, int iters,
                     int64_t* start, int64_t* end) {
  auto* base = static_cast<char*>(mapping);
  auto& barrier = *reinterpret_cast<hvd::bench::Barrier*>(base);
  auto& exchange = *reinterpret_cast<Exchange*>(base + hvd::bench::kBarrierBytes);
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  uint64_t elements = chunk_bytes / sizeof(float);
  uint64_t done = exchange.handed[rank].value.load();
  float sum = 0;
  for (int i = 0; i < iters; i++, done += chunks) {
    barrier.wait(rank, size);
    start[i] = hvd::bench::now_ns();
    for (uint64_t k = 0; k < chunks + 2; k++) {
      if (k < chunks) {
        write(exchange.slots[rank][k % kSlots], elements, static_cast<float>(k));
        exchange.handed[rank].value.store(done + k + 1, std::memory_order_release);
      }
      if (k >= 1 && k - 1 < chunks) {
        hvd::bench::wait_for(exchange.handed[right], done + k);
        update(exchange.slots[right][(k - 1) % kSlots], elements);
        exchange.returned[rank].value.store(done + k, std::memory_order_release);
      }
      if (k >= 2) {
        hvd::bench::wait_for(exchange.returned[left], done + k - 1);
        sum += read(exchange.slots[rank][(k - 2) % kSlots], elements);
      }
    }
    end[i] = hvd::bench::now_ns();
  }
  asm volatile("" : : "x"(sum));
}

// One in-place pass over the buffer: read every element once, write it once. No allreduce in private memory can touch
// a buffer less, so this time is the floor for every alternative at that size.
void memory_timed(void* mapping, int rank, int size, float* data, uint64_t count, int iters, int64_t* start,
                  int64_t* end) {
  hvd::bench::timed_loop(*static_cast<hvd::bench::Barrier*>(mapping), rank, size, data, count, iters, start, end, [=] {
    float* __restrict a = data;
    for (uint64_t k = 0; k < count; k++) a[k] = a[k] * 0.5f + 1.0f;
    asm volatile("" : : "r"(a) : "memory");
  });
}

// STREAM's copy (kind 0: b = a) and triad (kind 1: a = b + s * c) over arrays of `count` floats.
void memory_stream(void* mapping, int rank, int size, int kind, float* pa, float* pb, float* pc, uint64_t count,
                   int iters, int64_t* start, int64_t* end) {
  auto& barrier = *static_cast<hvd::bench::Barrier*>(mapping);
  float* __restrict a = pa;
  float* __restrict b = pb;
  float* __restrict c = pc;
  for (int i = 0; i < iters; i++) {
    barrier.wait(rank, size);
    start[i] = hvd::bench::now_ns();
    if (kind == 0) {
      std::memcpy(b, a, count * 4);
    } else {
      for (uint64_t k = 0; k < count; k++) a[k] = b[k] + 3.0f * c[k];
    }
    asm volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
    end[i] = hvd::bench::now_ns();
  }
}

void bench_barrier(void* mapping, int rank, int size) { static_cast<hvd::bench::Barrier*>(mapping)->wait(rank, size); }
}
