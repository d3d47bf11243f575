// The addresses of this host, for backends that listen on one, and addresses as ranks send them to each other.
//
// Header-only, C++17. Any thread.
#ifndef HVD_BACKEND_ADDRESSES_HPP_
#define HVD_BACKEND_ADDRESSES_HPP_

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hvd/backend.hpp"

#pragma GCC visibility push(hidden)
namespace hvd {

// An address and a port, IPv4 or IPv6; plain bytes, so that it can be put into the store.
struct Endpoint {
  uint8_t family;    // 4 or 6
  uint8_t loopback;  // reaches this host only
  uint16_t port;     // host byte order
  uint8_t address[16];

  bool operator==(const Endpoint& other) const { return std::memcmp(this, &other, sizeof other) == 0; }
};

struct Interface {
  std::string name;
  Endpoint endpoint;  // port 0
  uint32_t bits;      // length of the network's prefix
};

inline socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage* out) {
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

// False for an address that is neither IPv4 nor IPv6. An IPv4 address that is mapped into IPv6 becomes IPv4.
inline bool from_sockaddr(const sockaddr* address, Endpoint* out) {
  *out = {};
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return false;
  if (address->sa_family == AF_INET6) {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(address);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
    out->family = mapped ? 4 : 6;
    out->port = ntohs(in->sin6_port);
    std::memcpy(out->address, in->sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    out->loopback = mapped ? out->address[0] == 127 : IN6_IS_ADDR_LOOPBACK(&in->sin6_addr);
    return true;
  }
  const auto* in = reinterpret_cast<const sockaddr_in*>(address);
  out->family = 4;
  out->port = ntohs(in->sin_port);
  std::memcpy(out->address, &in->sin_addr, 4);
  out->loopback = out->address[0] == 127;
  return true;
}

// "10.0.0.1:4711", "[fd00::1]:4711"; without the port if it is 0.
inline std::string to_text(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v6 = endpoint.family != 4;
  inet_ntop(v6 ? AF_INET6 : AF_INET, endpoint.address, text, sizeof text);
  if (endpoint.port == 0) return text;
  return (v6 ? "[" + std::string(text) + "]" : std::string(text)) + ":" + std::to_string(endpoint.port);
}

// Whether the families and the first `bits` bits agree.
inline bool same_network(const Endpoint& a, const Endpoint& b, uint32_t bits) {
  if (a.family != b.family) return false;
  bits = std::min<uint32_t>(bits, a.family == 4 ? 32 : 128);
  if (std::memcmp(a.address, b.address, bits / 8) != 0) return false;
  const unsigned mask = bits % 8 == 0 ? 0 : 0xffu << (8 - bits % 8) & 0xffu;
  return mask == 0 || ((a.address[bits / 8] ^ b.address[bits / 8]) & mask) == 0;
}

// "10.0.0.0/8", "fd00::/8" or a single address; false for any other text.
inline bool parse_network(const std::string& text, Endpoint* network, uint32_t* bits) {
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  unsigned char bytes[16];
  *network = {};
  if (inet_pton(AF_INET, address.c_str(), bytes) == 1) {
    network->family = 4;
    network->loopback = bytes[0] == 127;
  } else if (inet_pton(AF_INET6, address.c_str(), bytes) == 1) {
    network->family = 6;
    network->loopback = IN6_IS_ADDR_LOOPBACK(reinterpret_cast<const in6_addr*>(bytes));
  } else {
    return false;
  }
  std::memcpy(network->address, bytes, network->family == 4 ? 4 : 16);
  *bits = network->family == 4 ? 32 : 128;
  if (slash == std::string::npos) return true;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text.c_str() + slash + 1, &end, 10);
  if (*end != '\0' || end == text.c_str() + slash + 1 || value > *bits) return false;
  *bits = static_cast<uint32_t>(value);
  return true;
}

namespace detail {

inline uint32_t prefix_bits(const sockaddr* mask, uint32_t without) {
  Endpoint m;
  if (!from_sockaddr(mask, &m)) return without;
  uint32_t bits = 0;
  for (const uint8_t byte : m.address) bits += static_cast<uint32_t>(__builtin_popcount(byte));
  return bits;
}

// Bridges to containers and virtual machines of this host often have the same address on every host.
inline bool is_bridge(const std::string& name) {
  for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "lxc", "lxd", "podman", "flannel", "cali"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

inline int unlikelihood(const Interface& i) {
  return (i.endpoint.loopback ? 4 : 0) + (is_bridge(i.name) ? 2 : 0) + (i.endpoint.family == 6 ? 1 : 0);
}

inline std::vector<std::string> entries(const std::string& list) {
  std::vector<std::string> found;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string entry = list.substr(at, comma - at);
    const size_t first = entry.find_first_not_of(" \t"), last = entry.find_last_not_of(" \t");
    if (first != std::string::npos) found.push_back(entry.substr(first, last - first + 1));
    at = comma + 1;
  }
  return found;
}

inline bool matches(const Interface& i, const std::string& entry) {
  if (i.name == entry) return true;
  Endpoint network;
  uint32_t bits;
  return parse_network(entry, &network, &bits) && same_network(i.endpoint, network, bits);
}

}  // namespace detail

// All addresses of interfaces that are up, except those of link-local IPv6: only together with the name of an
// interface, which differs by host, would such an address say anything. Those that are likely to be reachable from
// elsewhere come first, loopback last.
inline std::vector<Interface> list_interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    Interface it;
    if (!(i->ifa_flags & IFF_UP) || !from_sockaddr(i->ifa_addr, &it.endpoint)) continue;
    if (it.endpoint.family == 6 && it.endpoint.address[0] == 0xfe && (it.endpoint.address[1] & 0xc0) == 0x80) continue;
    it.endpoint.port = 0;
    it.name = i->ifa_name;
    it.bits = detail::prefix_bits(i->ifa_netmask, it.endpoint.family == 4 ? 32 : 128);
    found.push_back(it);
  }
  freeifaddrs(list);
  std::stable_sort(found.begin(), found.end(), [](const Interface& a, const Interface& b) {
    return detail::unlikelihood(a) < detail::unlikelihood(b);
  });
  return found;
}

// The addresses to publish. `wanted`: a comma list of interface names, networks (10.0.0.0/8) or addresses; empty: all.
// `source`: the setting that `wanted` comes from, for messages. Throws HVD_E_INVALID, with the names of the
// interfaces, if the list matches none of them.
inline std::vector<Interface> choose_interfaces(const std::string& wanted, const std::string& source) {
  const std::vector<Interface> all = list_interfaces();
  const std::vector<std::string> entries = detail::entries(wanted);
  if (entries.empty()) {
    if (!all.empty()) return all;
    throw Error(HVD_E_UNAVAILABLE, "this host has no network interface that is up, not even loopback");
  }
  // In the order of the list; hosts that name their interfaces differently share one list, so not all need match.
  std::vector<Interface> chosen;
  for (const std::string& entry : entries) {
    for (const Interface& i : all) {
      const auto same = [&](const Interface& c) { return c.endpoint == i.endpoint; };
      if (detail::matches(i, entry) && std::none_of(chosen.begin(), chosen.end(), same)) chosen.push_back(i);
    }
  }
  if (!chosen.empty()) return chosen;
  std::string have;
  for (const Interface& i : all) have += (have.empty() ? "" : ", ") + i.name + " (" + to_text(i.endpoint) + ")";
  throw Error(HVD_E_INVALID, source + " = '" + wanted + "' matches no network interface of this host; there are: " +
                                 (have.empty() ? "none" : have));
}

}  // namespace hvd
#pragma GCC visibility pop

#endif  // HVD_BACKEND_ADDRESSES_HPP_
