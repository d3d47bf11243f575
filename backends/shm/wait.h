// Sleeping on and waking a word of shared memory (a futex), and a pause for spinning. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd::shm {

// Sleeps while *word == expected, at most until deadline_ns (CLOCK_MONOTONIC). May return early for no reason.
void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns);
// Wakes all threads that sleep on the word, in any process that maps it.
void futex_wake(std::atomic<uint32_t>* word);

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace hvd::shm
