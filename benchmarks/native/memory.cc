// What the machine's memory can do, measured beside the allreduces: the limit of the limit. Loaded by
// benchmarks/workers/native.py; every rank runs the same pass at the same time on its own pinned core.
#include <cstring>

#include "spin.h"

extern "C" {

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
