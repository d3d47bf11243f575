// Opening the listening sockets; see listener.h.
#include "listener.h"

#include <errno.h>

#include <cstring>

#include "interfaces.h"
#include "rendezvous.h"
#include "shared.h"

namespace hvd::tcp {

uint16_t Listener::bind_to(const Endpoint& where, const LocalSettings& settings, int backlog) {
  Descriptor fd = make_socket(where.family, settings.peer_timeout_s, settings.buffer_kib);
  sockaddr_storage address;
  socklen_t n = to_sockaddr(where, &address);
  const int zero = 0;
  // One IPv6 socket for all addresses takes IPv4 too.
  if (fd && where.family == 6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
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

void Listener::open(const LocalSettings& settings, int backlog) {
  std::vector<Interface> chosen = choose_interfaces(settings.iface, settings.iface_source);
  if (chosen.size() > kMaxEndpoints) chosen.resize(kMaxEndpoints);
  if (!settings.iface.empty()) {
    for (const Interface& i : chosen) {
      const uint16_t port = bind_to(i.endpoint, settings, backlog);
      endpoints_.push_back(i.endpoint);
      endpoints_.back().port = port;
    }
    return;
  }
  Endpoint any = {6, 0, 0, {}};
  uint16_t port = 0;
  bool v6 = true;
  try {
    port = bind_to(any, settings, backlog);
  } catch (const Error&) {  // a kernel without IPv6
    v6 = false;
    any.family = 4;
    port = bind_to(any, settings, backlog);
  }
  for (const Interface& i : chosen) {
    if (!v6 && i.endpoint.family == 6) continue;
    endpoints_.push_back(i.endpoint);
    endpoints_.back().port = port;
  }
}

}  // namespace hvd::tcp
