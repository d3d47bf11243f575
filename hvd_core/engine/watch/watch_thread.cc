// See watch_thread.h.
#include "engine/watch/watch_thread.h"

#include <chrono>
#include <string>

#include "engine/base/log.h"
#include "engine/base/threads.h"

namespace hvd::watch {

namespace {
// wake() loads without a fence. After this time everything that was stored before a load that missed is visible.
constexpr int64_t kSecondLookNs = 200'000'000;
}  // namespace

WatchThread::~WatchThread() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WatchThread::rouse() noexcept {
  try {
    std::lock_guard lock(mutex_);
    asleep_.store(false);
    if (thread_.joinable())
      changed_.notify_all();
    else if (!failed_ && !quit_)
      thread_ = base::start_thread("hvd-watch", [this] { run(); });
  } catch (const std::exception& e) {
    failed_ = true;
    base::log(base::Level::Warning, std::string("calls into backends are not watched: ") + e.what());
  }
}

void WatchThread::run() {
  std::unique_lock lock(mutex_);
  bool quiet = false;  // the last look found nothing, and wake() rouses
  while (!quit_) {
    lock.unlock();
    const int64_t now = base::now_ns(), next = look_(now);
    lock.lock();
    if (quit_) return;
    if (next == kNever && quiet && asleep_.load()) {
      changed_.wait(lock, [this] { return quit_ || !asleep_.load(); });
      quiet = false;
      continue;
    }
    quiet = next == kNever;
    asleep_.store(quiet);
    const int64_t pause = quiet ? kSecondLookNs : next - now;
    changed_.wait_for(lock, std::chrono::nanoseconds(pause),
                      [this, quiet] { return quit_ || (quiet && !asleep_.load()); });
  }
}

}  // namespace hvd::watch
