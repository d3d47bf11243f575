// The thread "hvd-watch": it calls a function at the times that the function asks for, and sleeps while there is
// nothing to watch. It needs no interpreter, and no lock of those that it watches.
//
// The thread starts with the first wake(). Any thread may call wake(); the destructor ends the thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd::watch {

class WatchThread {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  // `look` gets the time (CLOCK_MONOTONIC, ns), and returns when it wants to be called next: kNever until wake(). It
  // must not throw, and must not destroy this object.
  explicit WatchThread(std::function<int64_t(int64_t)> look) : look_(std::move(look)) {}
  ~WatchThread();
  WatchThread(const WatchThread&) = delete;
  WatchThread& operator=(const WatchThread&) = delete;

  // There is something to watch. Costs a load while the thread is awake. A thread that cannot be started is reported
  // once: the engine works without it.
  void wake() noexcept {
    if (asleep_.load(std::memory_order_relaxed)) [[unlikely]]
      rouse();
  }

 private:
  void rouse() noexcept;
  void run();

  const std::function<int64_t(int64_t)> look_;
  std::atomic<bool> asleep_{true};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool quit_ = false, failed_ = false;
  std::thread thread_;
};

}  // namespace hvd::watch
