// A thread that makes one blocking call at a time, for one communicator. Begun with the first one; asleep in between.
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
  // Ends the thread; one that is inside of a call is left behind, and ends by itself should it ever return.
  ~Worker();

  // Nothing may be running. `call` owns all that it needs; `told` runs after it, on the same thread.
  void start(std::function<int()> call, std::function<void()> told);
  // What the call has answered, once it has returned (true).
  bool over(int* result);
  // Sleeps until it has returned or the deadline passes.
  void wait(int64_t deadline_ns);

 private:
  struct State;
  std::shared_ptr<State> state_;
};
