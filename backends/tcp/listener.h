// The sockets on which a rank is reached while a communicator is made. Used by create, on its thread.
#pragma once

#include <vector>

#include "address.h"
#include "settings.h"

namespace hvd::tcp {

class Listener {
 public:
  // Bound to the addresses of the interfaces that were named; to all addresses where none was.
  hvd_rc open(const LocalSettings& settings, int backlog, hvd_error* err);
  // What to tell other ranks, in the order in which they should try.
  const std::vector<Endpoint>& endpoints() const { return endpoints_; }
  const std::vector<Descriptor>& sockets() const { return sockets_; }

 private:
  hvd_rc bind_to(const Endpoint& where, const LocalSettings& settings, int backlog, uint16_t* port, hvd_error* err);

  std::vector<Descriptor> sockets_;
  std::vector<Endpoint> endpoints_;
};

}  // namespace hvd::tcp
