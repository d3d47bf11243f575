// A thread that runs functions of other threads, one after the other. It starts with the first function, and sleeps
// between functions.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

class WorkThread {
 public:
  struct Job {
    std::function<void()> body, after;
    std::exception_ptr error;
    bool done = false;
  };

  WorkThread() : state_(std::make_shared<State>()) {}
  WorkThread(const WorkThread&) = delete;
  // Ends the thread. A thread that is inside a function is abandoned, and ends when the function returns.
  ~WorkThread();

  // The body owns all objects that it refers to, unless the caller waits for it without a deadline. `after` runs when
  // the job is done.
  std::shared_ptr<Job> post(std::function<void()> body, std::function<void()> after = nullptr);
  // True when the job is done; throws its error. Sleeps until then or until deadline_ns (CLOCK_MONOTONIC).
  bool wait(const Job& job, int64_t deadline_ns);
  void run(std::function<void()> body) { wait(*post(std::move(body)), INT64_MAX); }
  bool run_until(int64_t deadline_ns, std::function<void()> body) { return wait(*post(std::move(body)), deadline_ns); }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable posted, finished;
    std::deque<std::shared_ptr<Job>> jobs;
    bool busy = false, ending = false;
  };
  static void serve(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};
