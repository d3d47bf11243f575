// Where a process can be reached: an abstract Unix socket for those that share its network namespace, TCP for all
// others. Both are opened for every endpoint, and whoever connects takes the first that answers. IPv4.
#pragma once

#include <array>
#include <cstdint>

#include "socket.h"

namespace sim {

using Token = std::array<unsigned char, 16>;

// As it travels.
struct Address {
  static constexpr int kMost = 8;
  Token name;            // of the abstract socket
  uint32_t ipv4[kMost];  // of all interfaces, in network order
  uint16_t port;         // host order
  uint16_t count;
};

class Listener {
 public:
  // False: the system has no socket for us.
  bool open(int backlog);
  const Address& address() const { return address_; }
  int unix_fd() const { return unix_.fd(); }
  int tcp_fd() const { return tcp_.fd(); }

  // A connection, or none when nobody waits. Non-blocking.
  Socket accept();

 private:
  Socket unix_, tcp_;
  Address address_{};
};

// None: nobody answered at any of the addresses before the deadline.
Socket connect_to(const Address& address, Clock::time_point deadline);

Token random_token();

}  // namespace sim
