// How a sleeping engine is woken: a state word that neighbours can see (in shared memory; private in a job without
// neighbours on its host) and two eventfds, one for the background thread and one for a caller that drives the engine
// itself.
//
// Neighbours of a driver that is awake make no system call: they read the word and find it Awake. Protocol: the sleeper
// stores its state, looks at its input once more, then polls; the sender writes its message, then looks at the word.
// Both sides put a sequentially consistent fence in between, so one of them sees the other.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace hvd::control {

enum class BellState : uint32_t { Awake = 0, BackgroundSleeps = 1, CallerSleeps = 2 };

using BellWord = std::atomic<uint32_t>;
static_assert(BellWord::is_always_lock_free);

inline void write_eventfd(int fd) {
  uint64_t one = 1;
  // EAGAIN means the counter is full: the reader is being woken already.
  [[maybe_unused]] auto n = ::write(fd, &one, sizeof one);
}

inline void drain_eventfd(int fd) {
  uint64_t value;
  [[maybe_unused]] auto n = ::read(fd, &value, sizeof value);
}

// One engine's bell. fds: [background thread, caller].
class Doorbell {
 public:
  Doorbell(BellWord* word, std::array<int, 2> fds) : word_(word), fds_(fds) {}

  void ring() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (word_->load(std::memory_order_relaxed) == 0) return;
    uint32_t was = word_->exchange(0);
    if (was == 1 || was == 2) write_eventfd(fds_[was - 1]);
  }
  // Wakes the background thread, also if the word is Awake. Only within the bell's own process.
  void ring_background() const { write_eventfd(fds_[0]); }

  void set(BellState s) const {
    word_->store(static_cast<uint32_t>(s));
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  int fd(BellState s) const { return fds_[static_cast<uint32_t>(s) - 1]; }

 private:
  BellWord* word_;
  std::array<int, 2> fds_;
};

}  // namespace hvd::control
