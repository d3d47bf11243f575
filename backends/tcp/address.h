// Internet addresses as they are sent between ranks, and the settings of the sockets made with them. Any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "host_kernels/descriptor.h"
#include "shared.h"

namespace hvd::tcp {

// An address and a port, IPv4 or IPv6; plain bytes, so that it can be put into the store.
struct Endpoint {
  uint8_t family;    // 4 or 6
  uint8_t loopback;  // reaches this host only
  uint16_t port;     // host byte order
  uint8_t address[16];

  bool operator==(const Endpoint&) const = default;
};

socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage* out);
// False for an address that is neither IPv4 nor IPv6. An IPv4 address that is mapped into IPv6 becomes IPv4.
bool from_sockaddr(const sockaddr* address, Endpoint* out);
// "10.0.0.1:4711", "[fd00::1]:4711"; without port when it is 0.
std::string to_text(const Endpoint& endpoint);
// Do the first `bits` bits agree (and the families)?
bool same_network(const Endpoint& a, const Endpoint& b, uint32_t bits);
// "10.0.0.0/8", "fd00::/8" or a single address; false for any other text.
bool parse_network(const std::string& text, Endpoint* network, uint32_t* bits);

// A new TCP socket: close-on-exec, non-blocking, without delay, with keepalive probes that give a silent peer
// `peer_timeout_s` seconds. Empty on failure, with errno set.
Descriptor make_socket(uint8_t family, uint32_t peer_timeout_s, uint32_t buffer_kib);
// The same settings for an accepted socket.
void set_up_socket(int fd, uint32_t peer_timeout_s);

}  // namespace hvd::tcp
