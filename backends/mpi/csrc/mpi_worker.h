// A thread that makes one blocking call at a time, for one communicator. It starts with the first call and sleeps
// between calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

class Worker {
 public:
  Worker() = default;
  Worker(const Worker&) = delete;
  // Ends the thread. A thread that is inside a call is abandoned, and ends when the call returns.
  ~Worker();

  // No call may be running. `call` owns all objects that it needs; `told` runs after it, on the same thread.
  void start(std::function<int()> call, std::function<void()> told);
  // True when the call has returned; its result is in the argument.
  bool over(int* result);
  // Sleeps until it has returned or the deadline passes.
  void wait(int64_t deadline_ns);

 private:
  struct State;
  std::shared_ptr<State> state_;
};
