// Choosing among the host's interfaces; see interfaces.h.
#include "interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <bit>

#include "shared.h"

namespace hvd::tcp {
namespace {

uint32_t prefix_bits(const sockaddr* mask) {
  Endpoint m;
  if (mask == nullptr || !from_sockaddr(mask, &m)) return 0;
  uint32_t bits = 0;
  for (const uint8_t byte : m.address) bits += static_cast<uint32_t>(std::popcount(byte));
  return bits;
}

// Bridges to containers and virtual machines of this host often have the same address on every host.
bool is_bridge(const std::string& name) {
  for (const char* prefix : {"docker", "br-", "virbr", "veth", "cni", "lxc", "lxd", "podman", "flannel", "cali"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

// Smaller is published earlier.
int unlikelihood(const Interface& i) {
  return (i.endpoint.loopback ? 4 : 0) + (is_bridge(i.name) ? 2 : 0) + (i.endpoint.family == 6 ? 1 : 0);
}

bool matches(const Interface& i, const std::string& entry) {
  if (i.name == entry) return true;
  Endpoint network;
  uint32_t bits;
  return parse_network(entry, &network, &bits) && same_network(i.endpoint, network, bits);
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> entries;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    std::string entry = list.substr(at, comma - at);
    const size_t first = entry.find_first_not_of(" \t"), last = entry.find_last_not_of(" \t");
    if (first != std::string::npos) entries.push_back(entry.substr(first, last - first + 1));
    at = comma + 1;
  }
  return entries;
}

}  // namespace

std::vector<Interface> list_interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    Interface it;
    if (i->ifa_addr == nullptr || !(i->ifa_flags & IFF_UP) || !from_sockaddr(i->ifa_addr, &it.endpoint)) continue;
    it.endpoint.port = 0;
    // Only together with the name of an interface, which differs by host, would such an address say anything.
    if (it.endpoint.family == 6 && it.endpoint.address[0] == 0xfe && (it.endpoint.address[1] & 0xc0) == 0x80) continue;
    it.name = i->ifa_name;
    it.bits = prefix_bits(i->ifa_netmask);
    found.push_back(it);
  }
  freeifaddrs(list);
  return found;
}

std::vector<Interface> choose_interfaces(const std::string& wanted, const char* source) {
  const std::vector<Interface> all = list_interfaces();
  const std::vector<std::string> entries = split(wanted);
  if (entries.empty()) {
    std::vector<Interface> sorted = all;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Interface& a, const Interface& b) { return unlikelihood(a) < unlikelihood(b); });
    if (!sorted.empty()) return sorted;
    throw formatted_error(HVD_E_UNAVAILABLE, 0, "this host has no network interface that is up, not even loopback");
  }
  // In the order of the list; hosts that name their interfaces differently share one list, so not all need match.
  std::vector<Interface> chosen;
  for (const std::string& entry : entries) {
    for (const Interface& i : all) {
      const auto same = [&](const Interface& c) { return c.endpoint == i.endpoint; };
      if (matches(i, entry) && std::none_of(chosen.begin(), chosen.end(), same)) chosen.push_back(i);
    }
  }
  if (!chosen.empty()) return chosen;
  std::string have;
  for (const Interface& i : all) have += (have.empty() ? "" : ", ") + i.name + " (" + to_text(i.endpoint) + ")";
  throw formatted_error(HVD_E_INVALID, 0, "%s = '%s' matches no network interface of this host; there are: %s", source,
                        wanted.c_str(), have.empty() ? "none" : have.c_str());
}

}  // namespace hvd::tcp
