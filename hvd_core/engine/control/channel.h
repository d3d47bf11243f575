// A two-way byte stream to one neighbour in the control tree, and nothing more: framing and meaning are Node's.
//
// Implementations: shared memory (shm_channel), TCP (tcp_channel), and a queue for simulations (sim). None blocks.
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
  // How many bytes were taken; fewer than offered when there is no room now. Throws ChannelClosed.
  virtual size_t send(std::string_view bytes) = 0;
  // How many bytes were read; 0 when there are none now. Throws ChannelClosed.
  virtual size_t recv(char* into, size_t room) = 0;
  // Call once after a series of sends: the neighbour may be asleep.
  virtual void wake_peer() = 0;
  // True when recv would return something, as far as can be told without a system call.
  virtual bool readable() const { return false; }
  // True when the neighbour has taken everything that was sent, or learns of it without being woken.
  virtual bool peer_has_read_all() const { return true; }
  // A descriptor whose readability means "recv may have something", or -1 where a doorbell says so.
  virtual int fd() const { return -1; }
};

}  // namespace hvd::control
