// Aborts communicators on a thread of its own, because a backend's abort may not come back although it must.
//
// The caller waits for a few seconds at most. Then the thread is left behind with the communicators, which are neither
// used nor destroyed any more. Any thread; one run at a time.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hvd::dataplane {

class SetComms;

class AbortRun {
 public:
  static constexpr int kLimitMs = 3000;  // counted in pauses: a process that is stopped meanwhile does not wait

  void run(std::vector<std::shared_ptr<SetComms>> sets) noexcept;
  // "the backend 'x' has not returned from abort for 3.0 s"; empty: all aborts have come back.
  std::string hanging() const;

 private:
  mutable std::mutex mutex_;
  std::string hanging_;
};

}  // namespace hvd::dataplane
