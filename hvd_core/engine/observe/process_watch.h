// Tells when another process ends: the launcher of the ranks, where it is known. A thread of its own waits for that, so
// that a program whose threads are all busy hears of it too.
#pragma once

#include <functional>
#include <thread>

namespace hvd::observe {

class ProcessWatch {
 public:
  // `pidfd`: of the process; is duplicated. `ended` is called once, on the watch's thread. Throws std::exception
  // without a thread, a descriptor or memory.
  ProcessWatch(int pidfd, std::function<void()> ended);
  // Waits for a call of `ended` that is under way.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;

 private:
  void watch() noexcept;

  const std::function<void()> ended_;
  int pidfd_ = -1, stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace hvd::observe
