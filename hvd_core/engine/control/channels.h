// The two real channels of the control tree: a pair of rings in the host's control segment, and a TCP connection.
// Used by the thread that drives the engine.
#pragma once

#include "engine/control/channel.h"
#include "engine/control/doorbell.h"
#include "engine/control/segment.h"

namespace hvd::control {

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

// `fd` is connected, non-blocking and authenticated. The caller closes it.
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

}  // namespace hvd::control
