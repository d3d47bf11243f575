// Opening the listening sockets; see listener.h.
#include "listener.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "rendezvous.h"
#include "shared.h"

namespace hvd::tcp {

uint16_t Listener::bind_to(const Endpoint& where, const LocalSettings& settings, int backlog) {
  Descriptor fd = make_socket(where.family, settings.peer_timeout_s, settings.buffer_kib);
  sockaddr_storage address;
  socklen_t n = to_sockaddr(where, &address);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), n) != 0 || listen(fd.get(), backlog) != 0) {
    throw formatted_error(HVD_E_UNAVAILABLE, 0, "cannot listen on %s: %s", to_text(where).c_str(), strerror(errno));
  }
  n = sizeof address;
  Endpoint bound;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &n) != 0 ||
      !from_sockaddr(reinterpret_cast<sockaddr*>(&address), &bound)) {
    throw formatted_error(HVD_E_INTERNAL, 0, "a listening socket does not tell its port: %s", strerror(errno));
  }
  sockets_.push_back(std::move(fd));
  return bound.port;
}

void Listener::open(const LocalSettings& settings, bool one_host, int backlog) {
  std::vector<Interface> chosen = choose_interfaces(settings.iface, settings.iface_source);
  const auto loopback = [](const Interface& i) { return i.endpoint.loopback != 0; };
  if (one_host && settings.iface.empty() && std::any_of(chosen.begin(), chosen.end(), loopback))
    std::erase_if(chosen, [&](const Interface& i) { return !loopback(i); });
  if (chosen.size() > kMaxEndpoints) chosen.resize(kMaxEndpoints);
  std::optional<Error> problem;
  for (const Interface& i : chosen) {
    try {
      const uint16_t port = bind_to(i.endpoint, settings, backlog);
      endpoints_.push_back(i.endpoint);
      endpoints_.back().port = port;
    } catch (const Error& error) {  // an address of IPv6 that is not in use yet, for instance
      if (!settings.iface.empty()) throw;
      if (!problem) problem = error;
    }
  }
  if (endpoints_.empty()) throw *problem;
}

}  // namespace hvd::tcp
