// Other processes of this host: whether one is stopped, and a thread that tells when one ends. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "engine/base/fd.h"

namespace hvd::base {

// "its process is stopped ...", for a report about a process that does not answer. Empty if `pid` is 0 or there is no
// such process in sight.
std::string process_state(int32_t pid);
// Whether the process is stopped, waits in the kernel or has ended. False also if its state cannot be seen.
bool is_seen_to_stand(int32_t pid);

// Tells when another process ends: the launcher of the ranks, where it is known. A thread of its own waits for that, so
// that a program whose threads are all busy hears of it too.
class ProcessWatch {
 public:
  // `pidfd`: of the process; is duplicated. `ended` is called once, on the watch's thread. Throws std::exception
  // without a thread or a descriptor.
  ProcessWatch(int pidfd, std::function<void()> ended);
  // Waits for a call of `ended` that is under way.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;

 private:
  void watch() noexcept;

  const std::function<void()> ended_;
  Fd pidfd_, stop_fd_;
  std::thread thread_;
};

}  // namespace hvd::base
