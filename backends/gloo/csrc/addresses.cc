// See addresses.h.
#include "addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <hvd/backend.hpp>
#include <sstream>

namespace hvd::gloo_backend {
namespace {

struct Address {
  std::string interface;
  int family = AF_UNSPEC;
  std::vector<uint8_t> bytes;
  int bits = 0;  // of its network

  bool loopback() const {
    if (family == AF_INET) return bytes[0] == 127;
    return std::all_of(bytes.begin(), bytes.end() - 1, [](uint8_t b) { return b == 0; }) && bytes.back() == 1;
  }
  bool link_local() const { return family == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }
};

bool from_sockaddr(const sockaddr* from, Address* to) {
  if (from == nullptr) return false;
  const auto take = [&](const void* p, size_t n) {
    to->family = from->sa_family;
    to->bytes.assign(static_cast<const uint8_t*>(p), static_cast<const uint8_t*>(p) + n);
    return true;
  };
  if (from->sa_family == AF_INET) return take(&reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
  if (from->sa_family == AF_INET6) return take(&reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr, 16);
  return false;
}

std::string to_text(const Address& a) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(a.family, a.bytes.data(), text, sizeof text);
  return text;
}

// "10.0.0.0/8", or an address alone.
bool parse(const std::string& text, Address* to) {
  const size_t slash = std::min(text.find('/'), text.size());
  const std::string address = text.substr(0, slash);
  uint8_t bytes[16];
  for (const int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, address.c_str(), bytes) != 1) continue;
    to->family = family;
    to->bytes.assign(bytes, bytes + (family == AF_INET ? 4 : 16));
    to->bits = static_cast<int>(to->bytes.size()) * 8;
    if (slash < text.size()) to->bits = std::min(to->bits, std::atoi(text.c_str() + slash + 1));
    return true;
  }
  return false;
}

bool same_network(const Address& a, const Address& b, int bits) {
  if (a.family != b.family) return false;
  for (size_t i = 0; i < a.bytes.size() && bits > 0; ++i, bits -= 8) {
    const int mask = bits >= 8 ? 0xff : 0xff & (0xff << (8 - bits));
    if ((a.bytes[i] ^ b.bytes[i]) & mask) return false;
  }
  return true;
}

// Bridges to containers and virtual machines of this host often have the same address on every host.
bool is_bridge(const std::string& name) {
  for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "lxc", "lxd", "podman", "flannel", "cali"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

int unlikelihood(const Address& a) {
  return (a.loopback() ? 4 : 0) + (is_bridge(a.interface) ? 2 : 0) + (a.family == AF_INET6 ? 1 : 0);
}

std::vector<Address> own_addresses() {
  std::vector<Address> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    Address a, mask;
    if (!(i->ifa_flags & IFF_UP) || !from_sockaddr(i->ifa_addr, &a) || a.link_local()) continue;
    a.interface = i->ifa_name;
    a.bits = static_cast<int>(a.bytes.size()) * 8;
    if (from_sockaddr(i->ifa_netmask, &mask)) {
      a.bits = 0;
      for (const uint8_t byte : mask.bytes) a.bits += __builtin_popcount(byte);
    }
    found.push_back(a);
  }
  freeifaddrs(list);
  std::stable_sort(found.begin(), found.end(),
                   [](const Address& x, const Address& y) { return unlikelihood(x) < unlikelihood(y); });
  return found;
}

bool matches(const Address& a, const std::string& entry) {
  if (a.interface == entry) return true;
  Address network;
  return parse(entry, &network) && same_network(a, network, network.bits);
}

std::vector<Address> parse_list(const std::string& list) {
  std::vector<Address> all;
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    Address a;
    if (parse(word, &a)) all.push_back(a);
  }
  return all;
}

// The address that the system would use to reach `peer`; empty if there is no route. Sends no data.
std::string source_towards(const Address& peer) {
  sockaddr_storage to;
  std::memset(&to, 0, sizeof to);
  to.ss_family = static_cast<sa_family_t>(peer.family);
  socklen_t n = peer.family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (peer.family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&to)->sin_port = htons(9);
    std::memcpy(&reinterpret_cast<sockaddr_in*>(&to)->sin_addr, peer.bytes.data(), 4);
  } else {
    reinterpret_cast<sockaddr_in6*>(&to)->sin6_port = htons(9);
    std::memcpy(&reinterpret_cast<sockaddr_in6*>(&to)->sin6_addr, peer.bytes.data(), 16);
  }
  const int fd = socket(peer.family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage mine;
  socklen_t size = sizeof mine;
  Address source;
  const bool known = connect(fd, reinterpret_cast<sockaddr*>(&to), n) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &size) == 0 &&
                     from_sockaddr(reinterpret_cast<sockaddr*>(&mine), &source);
  close(fd);
  return known ? to_text(source) : "";
}

}  // namespace

std::string list_addresses(const std::string& wanted, const std::string& source) {
  const std::vector<Address> all = own_addresses();
  std::string list, have;
  std::istringstream entries(wanted);
  std::vector<std::string> names;
  for (std::string entry; std::getline(entries, entry, ',');) {
    entry.erase(std::remove(entry.begin(), entry.end(), ' '), entry.end());
    if (!entry.empty()) names.push_back(entry);
  }
  for (const Address& a : all) {
    const std::string text = to_text(a) + "/" + std::to_string(a.bits);
    have += (have.empty() ? "" : ", ") + a.interface + " (" + text + ")";
    const auto fits = [&](const std::string& name) { return matches(a, name); };
    if (names.empty() || std::any_of(names.begin(), names.end(), fits)) list += (list.empty() ? "" : " ") + text;
  }
  if (!list.empty() || names.empty()) return list;
  throw Error(HVD_E_INVALID, source + " = '" + wanted + "' matches no network interface of this host; there are: " +
                                 (have.empty() ? "none" : have));
}

std::string choose_address(const std::vector<std::string>& lists, const std::vector<int32_t>& hosts, int32_t rank,
                           bool wanted) {
  const auto me = static_cast<size_t>(rank);
  const std::vector<Address> mine = parse_list(lists[me]);
  const auto elsewhere = [&](size_t r) { return hosts[r] != hosts[me]; };
  bool one_host = true;
  for (size_t r = 0; r < hosts.size(); ++r) one_host = one_host && !elsewhere(r);
  if (one_host) return wanted && !mine.empty() ? to_text(mine.front()) : "127.0.0.1";

  // The address whose network has the most of the other hosts; among equals the first of the list.
  size_t best = mine.size(), most = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].loopback()) continue;
    size_t neighbours = 0;
    for (size_t r = 0; r < lists.size(); ++r) {
      const std::vector<Address> theirs = elsewhere(r) ? parse_list(lists[r]) : std::vector<Address>();
      neighbours += std::any_of(theirs.begin(), theirs.end(),
                                [&](const Address& a) { return same_network(a, mine[i], mine[i].bits); });
    }
    if (neighbours > most) most = neighbours, best = i;
  }
  if (best < mine.size()) return to_text(mine[best]);
  if (wanted && !mine.empty()) return to_text(mine.front());
  for (size_t r = 0; r < lists.size(); ++r) {
    if (!elsewhere(r)) continue;
    for (const Address& theirs : parse_list(lists[r])) {
      if (theirs.loopback()) continue;
      const std::string source = source_towards(theirs);
      if (!source.empty()) return source;
    }
  }
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace hvd::gloo_backend
