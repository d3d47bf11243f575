// Futex calls; see wait.h. Not the private kind: the waiter and the waker may be different processes.
#include "wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace hvd::shm {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, int64_t deadline_ns) {
  timespec until = {static_cast<time_t>(deadline_ns / 1000000000), static_cast<long>(deadline_ns % 1000000000)};
  timespec* timeout = deadline_ns == INT64_MAX ? nullptr : &until;
  // WAIT_BITSET is the form whose timeout is an absolute CLOCK_MONOTONIC time.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_BITSET, expected, timeout, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hvd::shm
