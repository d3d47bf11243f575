// See completions.h.
#include "engine/frontend/completions.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/threads.h"

namespace hvd::frontend {
namespace {

// This thread's keeper, and whether it runs a task at this moment.
thread_local Completions::Keeper* keeper = nullptr;
thread_local bool runs_task = false;

void futex(std::atomic<uint32_t>& word, int what, uint32_t value) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), what, value, nullptr, nullptr, 0);
}

}  // namespace

void Completions::start() {
  if (started_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (started_.load() || shared_->over.load()) return;
  thread_ = base::start_thread("hvd-done", [shared = shared_] { shared->work(); });
  started_.store(true, std::memory_order_release);
}

void Completions::push(Task* task) noexcept {
  if (keeper && !runs_task && &keeper->completions_ == this) {
    task->next_ = nullptr;
    *keeper->end_ = task;
    keeper->end_ = &task->next_;
    keeper->any_ = true;
    return;
  }
  task->next_ = shared_->newest.load(std::memory_order_relaxed);
  while (!shared_->newest.compare_exchange_weak(task->next_, task)) {
  }
  shared_->wake();
}

void Completions::finish() {
  // Tasks that callers' threads keep run within moments.
  while (!keeper && keepers_.load() != 0) ::usleep(50);
  std::lock_guard lock(mutex_);
  shared_->over.store(true);
  if (!thread_.joinable()) return;
  shared_->wake();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

Completions::Keeper::Keeper(Completions& completions) noexcept : completions_(completions) {
  completions_.keepers_.fetch_add(1);
  keeper = this;
}

Completions::Keeper::~Keeper() {
  run();
  keeper = nullptr;
  completions_.keepers_.fetch_sub(1);
}

bool Completions::Keeper::can_keep() noexcept { return !keeper && !runs_task; }

void Completions::Keeper::run(Task* own) noexcept {
  // A task may call the table, and wait there: what this thread pushes meanwhile goes to the completion thread.
  runs_task = true;
  while (Task* task = oldest_) {
    oldest_ = task->next_;
    if (!oldest_) {
      end_ = &oldest_;
      any_ = false;
    }
    task->run();
  }
  if (own) own->run();
  runs_task = false;
}

void Completions::Shared::wake() noexcept {
  if (asleep.load() != 0 && asleep.exchange(0) != 0) futex(asleep, FUTEX_WAKE_PRIVATE, 1);
}

void Completions::Shared::work() noexcept {
  runs_task = true;
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

}  // namespace hvd::frontend
