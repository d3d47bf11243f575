// Shared by the native alternatives of the benchmarks: counters on cache lines of their own, a spinning wait, a
// barrier and the timed loop. Used by the benchmark's worker processes only, one thread each, over one shared mapping
// whose first bytes are a Barrier. Nothing here is part of the product.
#ifndef HVD_BENCHMARKS_NATIVE_SPIN_H_
#define HVD_BENCHMARKS_NATIVE_SPIN_H_

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace hvd::bench {

inline constexpr int kMaxRanks = 16;
inline constexpr uint64_t kBarrierBytes = 4096;  // the front of the mapping; the rest belongs to the alternative

struct alignas(128) Line {  // 128: adjacent lines are prefetched in pairs
  std::atomic<uint64_t> value;
};

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `line` has reached `target`. Gives the core away after a while, since ranks may share one.
inline void wait_for(const Line& line, uint64_t target) {
  for (int spins = 0; line.value.load(std::memory_order_acquire) < target;) {
    relax();
    if (++spins >= 20000) {
      sched_yield();
      spins = 0;
    }
  }
}

struct Barrier {
  Line arrived[kMaxRanks];

  // The counter in shared memory is the rank's own epoch, so the object needs no private state.
  void wait(int rank, int size) {
    uint64_t epoch = arrived[rank].value.load(std::memory_order_relaxed) + 1;
    arrived[rank].value.store(epoch, std::memory_order_release);
    for (int q = 0; q < size; q++) wait_for(arrived[q], epoch);
  }
};
static_assert(sizeof(Barrier) <= kBarrierBytes);

// Runs `op` `iters` times. Before each run the buffer is written anew and the ranks meet, both untimed; the caller
// combines the ranks' time stamps (one clock for all processes of a machine).
template <class Op>
void timed_loop(Barrier& barrier, int rank, int size, float* data, uint64_t count, int iters, int64_t* start,
                int64_t* end, Op op) {
  for (int i = 0; i < iters; i++) {
    float value = static_cast<float>(rank + 1 + i % 7);
    for (uint64_t k = 0; k < count; k++) data[k] = value;
    barrier.wait(rank, size);
    start[i] = now_ns();
    op();
    end[i] = now_ns();
  }
}

}  // namespace hvd::bench

#endif  // HVD_BENCHMARKS_NATIVE_SPIN_H_
