// Two ranks prove to each other that they know the communicator's secret, before anything else is read from a
// connection. One object per connection; never blocks. Used by create, on its thread.
//
//   caller -> host   who calls whom, over which lane, and a random number
//   host -> caller   a random number, and the MAC of all that was said, marked "host"
//   caller -> host   the same MAC, marked "caller"
//   host -> caller   one byte: welcome
//
// The MACs cover both random numbers, both ranks, the lane and the size; neither can be replayed, reflected or moved to
// another pair. A stranger costs the host at most 56 + 32 bytes of reading and one MAC.
#pragma once

#include <cstdint>

#include "descriptor.h"
#include "sha256.h"

namespace hvd::tcp {

struct Introduction {
  uint32_t caller, host, lane, size;  // ranks within the communicator
};

class Handshake {
 public:
  enum class State { kMore, kDone, kRefused };

  // The side that connected; speaks first.
  static Handshake as_caller(Descriptor fd, const Digest& secret, const Introduction& who);
  // The side that accepted; learns who calls.
  static Handshake as_host(Descriptor fd, const Digest& secret, uint32_t me, uint32_t size, uint32_t lanes);

  // Reads and writes what it can, when poll says that the socket is readable (a caller's first step: writable).
  State step();
  const Introduction& who() const { return who_; }
  int fd() const { return fd_.get(); }
  // The authenticated connection.
  Descriptor take() { return static_cast<Descriptor&&>(fd_); }

 private:
  Handshake() = default;
  bool read(void* to, uint32_t bytes, State* state);
  bool write(const void* from, uint32_t bytes);
  Digest mac(const char* side) const;

  Descriptor fd_;
  Digest secret_;
  bool caller_ = false;
  int stage_ = 0;
  Introduction who_ = {};
  uint32_t lanes_ = 0;
  unsigned char nonces_[2][32] = {};  // caller's, host's
  unsigned char incoming_[64] = {};
  uint32_t got_ = 0;
};

}  // namespace hvd::tcp
