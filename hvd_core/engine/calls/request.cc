// Completion and sleeping of requests. See request.h.
#include "engine/calls/request.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hvd::calls {

void Request::finish(uint32_t state) {
  state_.store(state);
  if (sleepers_.load() != 0)
    ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  if (call.listener && call.listener->settled(*this)) call.listener = nullptr;
}

void Request::sleep(int64_t timeout_ns) {
  timespec ts{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  sleepers_.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAIT_PRIVATE, kPending, &ts, nullptr, 0);
  sleepers_.fetch_sub(1);
}

}  // namespace hvd::calls
