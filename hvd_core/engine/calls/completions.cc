// See completions.h.
#include "engine/calls/completions.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/observe/threads.h"

namespace hvd::calls {
namespace {

void futex(std::atomic<uint32_t>& word, int what, uint32_t value) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), what, value, nullptr, nullptr, 0);
}

}  // namespace

void Completions::start() {
  if (started_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (started_.load() || shared_->over.load()) return;
  thread_ = observe::start_thread("hvd-done", [shared = shared_] { shared->work(); });
  started_.store(true, std::memory_order_release);
}

void Completions::push(Task* task) noexcept {
  task->next_ = shared_->newest.load(std::memory_order_relaxed);
  while (!shared_->newest.compare_exchange_weak(task->next_, task)) {
  }
  shared_->wake();
}

void Completions::finish() {
  std::lock_guard lock(mutex_);
  shared_->over.store(true);
  if (!thread_.joinable()) return;
  shared_->wake();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

void Completions::Shared::wake() noexcept {
  if (asleep.load() != 0 && asleep.exchange(0) != 0) futex(asleep, FUTEX_WAKE_PRIVATE, 1);
}

void Completions::Shared::work() noexcept {
  for (;;) {
    Task* list = newest.exchange(nullptr);
    if (!list) {
      if (over.load()) return;
      asleep.store(1);
      if (newest.load() == nullptr && !over.load()) futex(asleep, FUTEX_WAIT_PRIVATE, 1);
      asleep.store(0);
      continue;
    }
    Task* oldest = nullptr;
    while (list) {
      Task* next = list->next_;
      list->next_ = oldest;
      oldest = list;
      list = next;
    }
    while (oldest) {
      Task* task = oldest;
      oldest = task->next_;
      task->run();
    }
  }
}

}  // namespace hvd::calls
