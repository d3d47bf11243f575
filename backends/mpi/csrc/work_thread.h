// A thread that runs functions of other threads, in order. It sleeps in between and lives as long as the process.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

class WorkThread {
 public:
  // Returns when the body has run; throws what it throws.
  void run(const std::function<void()>& body);
  // The same until deadline_ns (CLOCK_MONOTONIC): false when the body has not returned by then. It goes on.
  bool run_until(int64_t deadline_ns, std::function<void()> body);

 private:
  struct Job {
    std::function<void()> body;
    std::exception_ptr error;
    bool done = false;
  };
  std::shared_ptr<Job> post(std::function<void()> body);
  void serve();

  std::mutex mutex_;
  std::condition_variable posted_, finished_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool started_ = false;
};

// For a function that may never return: runs it on a thread of its own, which is abandoned at the deadline.
bool run_detached_until(int64_t deadline_ns, std::function<void()> body);

int64_t now_ns();
