// The control segment, which the ranks of a host share for the control plane, and the doorbell by which one rank wakes
// another. No tensor lies here: the shm backend has a segment of its own for each communicator
// (backends/shm/segment.h).
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace hvd::agreement {

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

// How a sleeping engine is woken: a state word that neighbours can see (in shared memory; private in a job without
// neighbours on its host) and two eventfds, fds: one for the background thread, then one for a caller that drives the
// engine itself.
//
// Neighbours of a driver that is awake make no system call: they read the word and find it Awake. Protocol: the sleeper
// stores its state, looks at its input once more, then polls; the sender writes its message, then looks at the word.
// Both sides put a sequentially consistent fence in between, so one of them sees the other.
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

// The control segment of a host: one memfd that the host's first rank made and passed on, mapped by all its ranks.
//
//   header (64 KiB)            magic, abort flag and text, the leader's bell
//   slot of local rank i       that rank's bell, the ring towards the leader, the ring from the leader, and the rank's
//                              flight recorder
//
// It has no name, so that nothing is left behind after a crash. Forked children do not inherit it (MADV_DONTFORK).

// Bytes written by one side and read by the other. The counters only grow; the position is their remainder.
struct RingCounters {
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  alignas(64) std::atomic<uint32_t> writer_waits{0};  // the ring was full: the reader wakes the writer after reading
};

struct Ring {
  RingCounters* counters = nullptr;
  char* data = nullptr;
  uint64_t capacity = 0;

  uint64_t write(const char* bytes, uint64_t n);
  uint64_t read(char* into, uint64_t room);
};

class Segment {
 public:
  static constexpr uint64_t kHeaderBytes = 64u << 10, kSlotBytes = 1u << 20;

  // Maps `fd`, which the caller closes. Throws std::system_error.
  Segment(int fd, uint64_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  BellWord* leader_bell() const;
  BellWord* bell(uint32_t slot) const;
  Ring up(uint32_t slot) const;    // local rank -> leader
  Ring down(uint32_t slot) const;  // leader -> local rank
  // Memory of this rank for its flight recorder, which its neighbours can read when it has died.
  static const uint64_t kRecorderBytes;
  void* recorder(uint32_t slot) const;

  // The host-wide abort flag: the first text is kept. Returns the text that is kept. Wakes no rank: the caller sends
  // the abort over its links, or wakes its neighbours.
  std::string raise_abort(const std::string& text) const;
  bool abort_raised() const;
  std::string abort_text() const;

 private:
  char* base_;
  uint64_t bytes_;
};

// Raises the abort flag of the segment behind `fd` for a rank that ends its start, unless it is raised. Does nothing
// without a segment (`fd` < 0), or if it cannot be mapped.
void tell_failed_start(int fd, uint64_t bytes, int32_t rank, const std::string& why) noexcept;

}  // namespace hvd::agreement
