// The sockets on which a rank is reached while a communicator is made. Used by create, on its thread.
#pragma once

#include <vector>

#include "settings.h"
#include "sockets.h"

namespace hvd::tcp {

class Listener {
 public:
  // Binds to the addresses of the interfaces that the settings name. If they name none: to loopback where all ranks are
  // on one host, else to each address of this host, one by one. Never to the address that means all of them.
  void open(const LocalSettings& settings, bool one_host, int backlog);
  // What other ranks are told, in the order in which they should try.
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }
  const std::vector<Descriptor>& sockets() const { return sockets_; }

 private:
  // The port that the new socket has.
  uint16_t bind_to(const Endpoint& where, const LocalSettings& settings, int backlog);

  std::vector<Descriptor> sockets_;
  std::vector<Endpoint> endpoints_;
};

}  // namespace hvd::tcp
