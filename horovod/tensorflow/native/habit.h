// What a kernel's earlier executions tell about the next one. Graphs do not tell it, and mostly do the same each time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace hvd_tf {

// Any thread; a kernel may have several executions at a time, and then it does not matter which of them counts.
class Habit {
 public:
  // No other execution began during the last one: nothing else would be gained by a delay.
  bool is_last() const { return is_last_.load(std::memory_order_relaxed); }

  // Whether the next execution should keep its thread for a moment, in which the operation will probably be done. Not
  // if that was in vain lately, because the other ranks come late here: it is tried again after a while.
  bool stays() {
    if (!is_last()) return false;
    const uint32_t left = pause_.load(std::memory_order_relaxed);
    if (left == 0) return true;
    pause_.store(left - 1, std::memory_order_relaxed);
    return false;
  }

  // An execution has ended. `was_last`: no other began meanwhile. `stayed`, `in_vain`: it kept its thread, and not for
  // long enough.
  void note(bool was_last, bool stayed, bool in_vain) {
    is_last_.store(was_last, std::memory_order_relaxed);
    if (!stayed) return;
    const uint32_t failures =
        in_vain ? std::min<uint32_t>(kMostFailures, failures_.load(std::memory_order_relaxed) + 1) : 0;
    failures_.store(failures, std::memory_order_relaxed);
    pause_.store((1u << failures) - 1, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kMostFailures = 6;  // a pause of 63 executions

  std::atomic<bool> is_last_{false};
  std::atomic<uint32_t> pause_{0}, failures_{0};
};

}  // namespace hvd_tf
