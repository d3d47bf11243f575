// A two-way byte stream to one neighbour in the control tree. Link makes frames of it, and Node reads their meaning.
//
// Implementations: shared memory and TCP (channels.h), and a queue for simulations (bind/sim.cc). No function blocks.
// Used by the thread that drives the engine.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace hvd::control {

// The neighbour is gone.
struct ChannelClosed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Channel {
 public:
  virtual ~Channel() = default;
  // Returns the number of bytes taken, which may be fewer than offered. Throws ChannelClosed.
  virtual size_t send(std::string_view bytes) = 0;
  // Returns the number of bytes read, 0 if there are none now. Throws ChannelClosed.
  virtual size_t recv(char* into, size_t room) = 0;
  // To be called once after a series of sends: the neighbour may be asleep.
  virtual void wake_peer() = 0;
  // Whether recv() would return bytes, as far as can be told without a system call.
  virtual bool readable() const { return false; }
  // Whether the neighbour has read everything that was sent, or learns of it without being woken.
  virtual bool peer_has_read_all() const { return true; }
  // A descriptor that becomes readable when recv() may return bytes; -1 for a channel with a doorbell.
  virtual int fd() const { return -1; }
};

}  // namespace hvd::control
