// The completion thread: calls the done() functions of callers that do not wait. It is started for the first of these
// calls; programs without them have no such thread.
//
// The driver hands tasks over without a lock, and makes a system call only if the thread sleeps: one for all tasks that
// come until the thread looks. A driver that is a caller's thread in submit() keeps the tasks instead, and runs them
// when it holds no lock (Keeper).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

namespace hvd::frontend {

class Completions {
 public:
  // Runs once on the thread. It may delete itself.
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

  // Starts the thread if it does not run. Throws std::system_error.
  void start();
  // The completion thread runs tasks in the order of these calls. Any thread; start() was called before.
  void push(Task* task) noexcept;
  // Runs the remaining tasks and ends the thread; no task is pushed any more. If a task calls it, it does not wait.
  void finish();

  // While it lives, its thread keeps the tasks that it pushes, except while it runs one. At most one per thread, and
  // none is made while the thread runs a task: see can_keep().
  class Keeper {
   public:
    explicit Keeper(Completions& completions) noexcept;
    ~Keeper();
    Keeper(const Keeper&) = delete;
    Keeper& operator=(const Keeper&) = delete;

    // Whether this thread may have one.
    static bool can_keep() noexcept;
    // Whether there are tasks. Changes when this thread pushes.
    const bool& any() const noexcept { return any_; }
    // Runs the tasks, and `own` after them if it is not null. Without locks.
    void run(Task* own = nullptr) noexcept;

   private:
    friend class Completions;
    Completions& completions_;
    Task *oldest_ = nullptr, **end_ = &oldest_;
    bool any_ = false;
  };

 private:
  // Shared with the thread, because a task may delete this object.
  struct Shared {
    std::atomic<Task*> newest{nullptr};
    std::atomic<uint32_t> asleep{0};
    std::atomic<bool> over{false};

    void wake() noexcept;
    void work() noexcept;
  };

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::atomic<bool> started_{false};
  std::atomic<uint32_t> keepers_{0};
  std::mutex mutex_;  // start and finish
  std::thread thread_;
};

}  // namespace hvd::frontend
