// See watch.h.
#include "engine/observe/watch.h"

#include <chrono>
#include <string>
#include <utility>

#include "engine/observe/log.h"
#include "engine/observe/threads.h"

namespace hvd::observe {

namespace {
// wake() loads without a fence. After this time everything that was stored before a load that missed is visible.
constexpr int64_t kSecondLookNs = 200'000'000;
}  // namespace

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::rouse() noexcept {
  try {
    std::lock_guard lock(mutex_);
    asleep_.store(false);
    if (thread_.joinable())
      changed_.notify_all();
    else if (!failed_ && !quit_)
      thread_ = start_thread("hvd-watch", [this] { run(); });
  } catch (const std::exception& e) {
    failed_ = true;
    log(Level::Warning, std::string("calls into backends are not watched: ") + e.what());
  }
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  bool quiet = false;  // the last look found nothing, and wake() rouses
  while (!quit_) {
    lock.unlock();
    const int64_t now = now_ns(), next = look_(now);
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

}  // namespace hvd::observe
