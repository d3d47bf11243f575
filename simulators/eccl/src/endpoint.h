// The address of a process: an abstract Unix socket for processes in its network namespace, TCP for all others. Every
// endpoint opens both, and a connecting process takes the first that answers. IPv4.
#pragma once

#include <array>
#include <cstdint>

#include "socket.h"

namespace sim {

using Token = std::array<unsigned char, 16>;

// As it is sent between processes.
struct Address {
  static constexpr int kMost = 8;
  Token name;            // of the abstract socket
  uint32_t ipv4[kMost];  // of all interfaces, in network order
  uint16_t port;         // host order
  uint16_t count;
};

class Listener {
 public:
  // False if the system gives no socket.
  bool open(int backlog);
  const Address& address() const { return address_; }
  int unix_fd() const { return unix_.fd(); }
  int tcp_fd() const { return tcp_.fd(); }

  // A connection; an empty Socket if no process is connecting. Does not block.
  Socket accept();

 private:
  Socket unix_, tcp_;
  Address address_{};
};

// An empty Socket if no address answered before the deadline.
Socket connect_to(const Address& address, Clock::time_point deadline);

Token random_token();

}  // namespace sim
