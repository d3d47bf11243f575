// The thread on which a communicator's blocking calls run, in order. It sleeps while its queue is empty.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <hvd/backend.hpp>
#include <mutex>

class Worker {
 public:
  struct Job {
    std::function<void()> body;  // throws hvd::Error
    bool done = false;
    std::exception_ptr failure;
  };

  explicit Worker(void* notify_token) : token_(notify_token), thread_([this] { main(); }) {}
  ~Worker() { stop(); }
  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    posted_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::shared_ptr<Job> post(std::function<void()> body) {
    auto job = std::make_shared<Job>();
    job->body = std::move(body);
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(job);
    posted_.notify_all();
    return job;
  }
  // Whether the job is done by then; throws its failure. A deadline in the past asks without waiting.
  bool done(Job& job, int64_t deadline_ns) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto over = [&] { return job.done; };
    if (deadline_ns == HVD_NO_DEADLINE) {
      finished_.wait(lock, over);
    } else {
      finished_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns)), over);
    }
    if (job.failure) std::rethrow_exception(job.failure);
    return job.done;
  }
  void check() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void main() {
    hvd::thread_enter("ohcl");
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      posted_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::shared_ptr<Job> job = queue_.front();
      queue_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        job->body();
      } catch (...) {
        failure = std::current_exception();
      }
      job->body = nullptr;
      lock.lock();
      job->done = true;
      job->failure = failure;
      if (failure && !failure_) failure_ = failure;
      finished_.notify_all();
      hvd::host->notify(token_);  // the engine need not poll
    }
  }

  void* const token_;
  std::mutex mutex_;
  std::condition_variable posted_, finished_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::exception_ptr failure_;  // of the communicator: the first
  bool stopping_ = false;
  std::thread thread_;
};
