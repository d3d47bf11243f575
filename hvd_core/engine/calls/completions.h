// The thread on which callers who do not wait are told that their operation is over: made for the first of them, none
// in programs that have none.
//
// Whoever drives the engine hands over without a lock, and makes a system call only if the thread sleeps: once for all
// that has come when it looks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace hvd::calls {

class Completions {
 public:
  // Something to be done on the thread, once. It may delete itself.
  class Task {
   public:
    virtual void run() noexcept = 0;

   protected:
    ~Task() = default;

   private:
    friend class Completions;
    Task* next_ = nullptr;
  };

  Completions() = default;
  ~Completions() { finish(); }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // Makes the thread, if there is none. Throws std::system_error.
  void start();
  // In the order in which they come. Any thread; start() was called before.
  void push(Task* task) noexcept;
  // Runs what is there and ends the thread; nothing is pushed any more. Called by a task, it does not wait for the end.
  void finish();

 private:
  // The thread has its share of it: a task may be the one that lets go of this object.
  struct Shared {
    std::atomic<Task*> newest{nullptr};
    std::atomic<uint32_t> asleep{0};
    std::atomic<bool> over{false};

    void wake() noexcept;
    void work() noexcept;
  };

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::atomic<bool> started_{false};
  std::mutex mutex_;  // start and finish
  std::thread thread_;
};

}  // namespace hvd::calls
