// Addresses and socket settings; see address.h.
#include "address.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace hvd::tcp {
namespace {

// ::ffff:a.b.c.d
constexpr unsigned char kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

void set(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

}  // namespace

socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage* out) {
  std::memset(out, 0, sizeof *out);
  if (endpoint.family == 4) {
    auto* in = reinterpret_cast<sockaddr_in*>(out);
    in->sin_family = AF_INET;
    in->sin_port = htons(endpoint.port);
    std::memcpy(&in->sin_addr, endpoint.address, 4);
    return sizeof *in;
  }
  auto* in = reinterpret_cast<sockaddr_in6*>(out);
  in->sin6_family = AF_INET6;
  in->sin6_port = htons(endpoint.port);
  std::memcpy(&in->sin6_addr, endpoint.address, 16);
  return sizeof *in;
}

bool from_sockaddr(const sockaddr* address, Endpoint* out) {
  *out = {};
  if (address->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(address);
    out->family = 4;
    out->port = ntohs(in->sin_port);
    std::memcpy(out->address, &in->sin_addr, 4);
    out->loopback = out->address[0] == 127;
    return true;
  }
  if (address->sa_family != AF_INET6) return false;
  const auto* in = reinterpret_cast<const sockaddr_in6*>(address);
  out->port = ntohs(in->sin6_port);
  const unsigned char* bytes = in->sin6_addr.s6_addr;
  if (std::equal(kMapped, kMapped + 12, bytes)) {
    out->family = 4;
    std::memcpy(out->address, bytes + 12, 4);
    out->loopback = out->address[0] == 127;
    return true;
  }
  out->family = 6;
  std::memcpy(out->address, bytes, 16);
  out->loopback = IN6_IS_ADDR_LOOPBACK(&in->sin6_addr);
  return true;
}

std::string to_text(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v6 = endpoint.family != 4;
  inet_ntop(v6 ? AF_INET6 : AF_INET, endpoint.address, text, sizeof text);
  if (endpoint.port == 0) return text;
  return (v6 ? "[" + std::string(text) + "]" : std::string(text)) + ":" + std::to_string(endpoint.port);
}

bool same_network(const Endpoint& a, const Endpoint& b, uint32_t bits) {
  if (a.family != b.family) return false;
  bits = std::min<uint32_t>(bits, a.family == 4 ? 32 : 128);
  if (std::memcmp(a.address, b.address, bits / 8) != 0) return false;
  const unsigned mask = bits % 8 == 0 ? 0 : 0xffu << (8 - bits % 8) & 0xffu;
  return mask == 0 || ((a.address[bits / 8] ^ b.address[bits / 8]) & mask) == 0;
}

bool parse_network(const std::string& text, Endpoint* network, uint32_t* bits) {
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  *network = {};
  if (inet_pton(AF_INET, address.c_str(), network->address) == 1) {
    network->family = 4;
  } else if (inet_pton(AF_INET6, address.c_str(), network->address) == 1) {
    network->family = 6;
  } else {
    return false;
  }
  *bits = network->family == 4 ? 32 : 128;
  if (slash == std::string::npos) return true;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text.c_str() + slash + 1, &end, 10);
  if (*end != '\0' || end == text.c_str() + slash + 1 || value > *bits) return false;
  *bits = static_cast<uint32_t>(value);
  return true;
}

void set_up_socket(int fd, uint32_t peer_timeout_s) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // While no data of this rank is on the way, only these probes notice that the peer's host is gone. While some is,
  // progress.cc watches the acknowledgements; TCP_USER_TIMEOUT would also end connections to a peer that lives but is
  // slow to read.
  const int seconds = static_cast<int>(std::max(peer_timeout_s, 2u));
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Descriptor make_socket(uint8_t family, uint32_t peer_timeout_s, uint32_t buffer_kib) {
  Descriptor fd(socket(family == 4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return fd;
  set_up_socket(fd.get(), peer_timeout_s);
  // Before connect or listen, or the window's scale is settled without it.
  if (buffer_kib > 0) {
    set(fd.get(), SOL_SOCKET, SO_SNDBUF, static_cast<int>(buffer_kib) * 1024);
    set(fd.get(), SOL_SOCKET, SO_RCVBUF, static_cast<int>(buffer_kib) * 1024);
  }
  return fd;
}

}  // namespace hvd::tcp
