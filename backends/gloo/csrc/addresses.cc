// See addresses.h.
#include "addresses.h"

#include <unistd.h>

#include <hvd/backend_addresses.hpp>
#include <sstream>

namespace hvd::gloo_backend {
namespace {

std::vector<Interface> parse_list(const std::string& list) {
  std::vector<Interface> all;
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    Interface i;
    if (parse_network(word, &i.endpoint, &i.bits)) all.push_back(i);
  }
  return all;
}

// The address that the system would use to reach `peer`; empty if there is no route. Sends no data.
std::string source_towards(Endpoint peer) {
  peer.port = 9;
  sockaddr_storage to, mine;
  socklen_t n = to_sockaddr(peer, &to), size = sizeof mine;
  const int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  Endpoint source;
  const bool known = connect(fd, reinterpret_cast<sockaddr*>(&to), n) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &size) == 0 &&
                     from_sockaddr(reinterpret_cast<sockaddr*>(&mine), &source);
  close(fd);
  source.port = 0;
  return known ? to_text(source) : "";
}

}  // namespace

std::string list_addresses(const std::string& wanted, const std::string& source) {
  std::string list;
  for (const Interface& i : choose_interfaces(wanted, source)) {
    list += (list.empty() ? "" : " ") + to_text(i.endpoint) + "/" + std::to_string(i.bits);
  }
  return list;
}

std::string choose_address(const std::vector<std::string>& lists, const std::vector<int32_t>& hosts, int32_t rank,
                           bool wanted) {
  const auto me = static_cast<size_t>(rank);
  const std::vector<Interface> mine = parse_list(lists[me]);
  const auto elsewhere = [&](size_t r) { return hosts[r] != hosts[me]; };
  bool one_host = true;
  for (size_t r = 0; r < hosts.size(); ++r) one_host = one_host && !elsewhere(r);
  if (one_host) return wanted && !mine.empty() ? to_text(mine.front().endpoint) : "127.0.0.1";

  // The address whose network has the most of the other hosts; among equals the first of the list.
  size_t best = mine.size(), most = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].endpoint.loopback) continue;
    size_t neighbours = 0;
    for (size_t r = 0; r < lists.size(); ++r) {
      const std::vector<Interface> theirs = elsewhere(r) ? parse_list(lists[r]) : std::vector<Interface>();
      neighbours += std::any_of(theirs.begin(), theirs.end(), [&](const Interface& a) {
        return same_network(a.endpoint, mine[i].endpoint, mine[i].bits);
      });
    }
    if (neighbours > most) most = neighbours, best = i;
  }
  if (best < mine.size()) return to_text(mine[best].endpoint);
  for (const Interface& i : mine)
    if (wanted && !i.endpoint.loopback) return to_text(i.endpoint);
  if (wanted && !mine.empty()) return to_text(mine.front().endpoint);
  for (size_t r = 0; r < lists.size(); ++r) {
    if (!elsewhere(r)) continue;
    for (const Interface& theirs : parse_list(lists[r])) {
      if (theirs.endpoint.loopback) continue;
      const std::string source = source_towards(theirs.endpoint);
      if (!source.empty()) return source;
    }
  }
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace hvd::gloo_backend
