// Two ranks prove to each other that they know the communicator's secret, before anything else is read from a
// connection. One object per connection; never blocks. Used by the constructor, on its thread.
//
//   caller -> host   which rank calls which, for which socket, and a random number
//   host -> caller   a random number, and the host's proof (wire_security/proof.h)
//   caller -> host   the caller's proof
//   host -> caller   one byte: welcome
//
// Unlike at the store, the accepting side proves itself first: once a caller has sent its own proof it must wait for
// the welcome without a limit of time, which no stranger may make it do. The proofs cover both random numbers, both
// ranks, the socket and the size; neither can be replayed, reflected or moved to another pair. A connection without the
// secret costs the host at most 56 + 32 bytes of reading and one MAC.
#pragma once

#include <cstdint>

#include "host_kernels/descriptor.h"
#include "shared.h"

namespace hvd::tcp {

struct Introduction {
  uint32_t caller, host, socket_index, size;  // ranks within the communicator
};

class Handshake {
 public:
  enum class State { kMore, kDone, kRefused };

  // The side that connected; speaks first.
  static Handshake as_caller(Descriptor fd, const Digest& secret, const Introduction& introduction);
  // The side that accepted; learns which rank calls.
  static Handshake as_host(Descriptor fd, const Digest& secret, uint32_t me, uint32_t size, uint32_t sockets_per_peer);

  // Reads and writes what it can, when poll says that the socket is readable (a caller's first step: writable).
  State step();
  // A caller that knows its peer, has sent its proof, and waits for the welcome.
  bool has_proved() const { return caller_ && stage_ == 2; }
  const Introduction& introduction() const { return introduction_; }
  int fd() const { return fd_.get(); }
  // Known to both sides and to no other connection, when step() has returned kDone.
  Digest key() const { return mac("key"); }
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
  Introduction introduction_ = {};
  uint32_t sockets_per_peer_ = 0;
  unsigned char nonces_[2][32] = {};  // caller's, host's
  unsigned char incoming_[64] = {};
  uint32_t got_ = 0;
};

}  // namespace hvd::tcp
