// The threads of a communicator: one on which Gloo's collectives block, one after the other, and one that checks the
// peers of a collective that takes long. Both sleep when there is no collective.
//
// post, test and wait come from the host's threads, one at a time; abort and failure from any. An operation that fails
// ends the communicator: all queued and all later operations fail with the same error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "errors.h"
#include "mesh.h"

namespace hvd::gloo_backend {

class Worker {
 public:
  using Body = std::function<void()>;  // blocks in Gloo
  struct Job {
    const char* what;
    Body body;
    int64_t deadline_ns;
    bool done = false;
    Failure failure;
  };

  // `timeout_s`: that a message may be waited for; 0: as long as the operation has.
  Worker(std::shared_ptr<Mesh> mesh, int32_t timeout_s, void* notify_token);
  ~Worker() { stop(); }

  std::shared_ptr<Job> post(const char* what, int64_t deadline_ns, Body body);
  // Both throw the job's error. test never sleeps, wait does until `deadline_ns`.
  bool test(Job& job);
  bool wait(Job& job, int64_t deadline_ns);

  void abort();
  Failure failure();
  // Interrupts the running job and ends the thread.
  void stop();

 private:
  void main();
  void run(Job& job);
  void watch();
  bool ended(Job& job);

  const std::shared_ptr<Mesh> mesh_;
  const std::chrono::milliseconds patience_;
  void* const notify_token_;
  std::mutex mutex_;
  std::condition_variable posted_, finished_;
  std::deque<std::shared_ptr<Job>> queue_;
  Failure failure_;  // of the communicator
  bool stopping_ = false;
  uint64_t begun_ = 0, ended_ = 0;  // jobs
  bool watch_sleeps_ = false;
  std::condition_variable watch_;
  std::thread thread_, watcher_;
};

}  // namespace hvd::gloo_backend
