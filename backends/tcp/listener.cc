// Opening the listening sockets; see listener.h.
#include "listener.h"

#include <errno.h>

#include <cstring>

#include "interfaces.h"
#include "rendezvous.h"
#include "shared.h"

namespace hvd::tcp {

hvd_rc Listener::bind_to(const Endpoint& where, const LocalSettings& settings, int backlog, uint16_t* port,
                         hvd_error* err) {
  Descriptor fd = make_socket(where.family, settings.peer_timeout_s, settings.buffer_kib);
  sockaddr_storage address;
  socklen_t n = to_sockaddr(where, &address);
  const int zero = 0;
  // One IPv6 socket for all addresses takes IPv4 too.
  if (fd && where.family == 6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  if (!fd || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), n) != 0 || listen(fd.get(), backlog) != 0) {
    return fail(err, HVD_E_UNAVAILABLE, 0, "cannot listen on %s: %s", to_text(where).c_str(), strerror(errno));
  }
  n = sizeof address;
  Endpoint bound;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &n) != 0 ||
      !from_sockaddr(reinterpret_cast<sockaddr*>(&address), &bound)) {
    return fail(err, HVD_E_INTERNAL, 0, "a listening socket does not tell its port: %s", strerror(errno));
  }
  *port = bound.port;
  sockets_.push_back(std::move(fd));
  return HVD_OK;
}

hvd_rc Listener::open(const LocalSettings& settings, int backlog, hvd_error* err) {
  std::vector<Interface> chosen;
  hvd_rc rc = choose_interfaces(settings.iface, settings.iface_source, &chosen, err);
  if (rc != HVD_OK) return rc;
  if (chosen.size() > kMaxEndpoints) chosen.resize(kMaxEndpoints);
  uint16_t port = 0;
  if (settings.iface.empty()) {
    Endpoint any = {6, 0, 0, {}};
    bool v6 = true;
    if (bind_to(any, settings, backlog, &port, err) != HVD_OK) {  // a kernel without IPv6
      v6 = false;
      any.family = 4;
      if ((rc = bind_to(any, settings, backlog, &port, err)) != HVD_OK) return rc;
    }
    for (const Interface& i : chosen) {
      if (!v6 && i.endpoint.family == 6) continue;
      endpoints_.push_back(i.endpoint);
      endpoints_.back().port = port;
    }
    return HVD_OK;
  }
  for (const Interface& i : chosen) {
    if ((rc = bind_to(i.endpoint, settings, backlog, &port, err)) != HVD_OK) return rc;
    endpoints_.push_back(i.endpoint);
    endpoints_.back().port = port;
  }
  return HVD_OK;
}

}  // namespace hvd::tcp
