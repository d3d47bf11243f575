// A two-way byte stream to one neighbour in the control tree. Link makes frames of it, and Node reads their meaning.
//
// Implementations: shared memory and TCP (both here), and a queue for simulations (tests/model). No function blocks.
// Used by the thread that drives the engine.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string_view>

#include "engine/agreement/segment.h"

namespace hvd::agreement {

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
  // Whether recv() would return bytes, as far as is known without a system call.
  virtual bool readable() const { return false; }
  // Whether the neighbour has read everything that was sent, or learns of it without being woken.
  virtual bool peer_has_read_all() const { return true; }
  // A descriptor that becomes readable when recv() may return bytes; -1 for a channel with a doorbell.
  virtual int fd() const { return -1; }
};

// A pair of rings in the host's control segment, within a host.
class ShmChannel final : public Channel {
 public:
  ShmChannel(Ring out, Ring in, Doorbell peer) : out_(out), in_(in), peer_(peer) {}
  size_t send(std::string_view bytes) override { return out_.write(bytes.data(), bytes.size()); }
  size_t recv(char* into, size_t room) override;
  void wake_peer() override { peer_.ring(); }
  bool peer_has_read_all() const override { return out_.counters->written.load() == out_.counters->read.load(); }
  bool readable() const override { return in_.counters->written.load() != in_.counters->read.load(); }

 private:
  Ring out_, in_;
  Doorbell peer_;
};

// A TCP connection, between hosts. `fd` is connected, non-blocking and authenticated. The caller closes it.
class TcpChannel final : public Channel {
 public:
  explicit TcpChannel(int fd) : fd_(fd) {}
  size_t send(std::string_view bytes) override;
  size_t recv(char* into, size_t room) override;
  void wake_peer() override {}
  int fd() const override { return fd_; }

 private:
  int fd_;
};

}  // namespace hvd::agreement
