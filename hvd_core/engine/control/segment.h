// The control segment of a host: one memfd that the host's first rank made and passed on, mapped by all its ranks.
//
//   header (64 KiB)            magic, abort flag and text, the leader's bell
//   slot of local rank i       that rank's bell, the ring towards the leader, the ring from the leader, and the rank's
//                              flight recorder
//
// It has no name, so that nothing is left behind after a crash. Forked children do not inherit it (MADV_DONTFORK).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "engine/control/doorbell.h"

namespace hvd::control {

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

  // The host-wide abort flag: the first text is kept. Returns the text that is kept.
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

}  // namespace hvd::control
