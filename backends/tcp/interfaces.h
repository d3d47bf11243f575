// The network interfaces of this host, and which of their addresses other ranks should be told. Any thread.
#pragma once

#include <string>
#include <vector>

#include "address.h"

namespace hvd::tcp {

struct Interface {
  std::string name;
  Endpoint endpoint;  // port 0
  uint32_t bits;      // length of the network's prefix
};

// All addresses of interfaces that are up, those of link-local IPv6 excepted.
std::vector<Interface> list_interfaces();

// The addresses to publish. `wanted`: a comma list of interface names, networks (10.0.0.0/8) or addresses; empty: all,
// those that are likely to be reachable from elsewhere first, loopback last. `source`: the setting that `wanted` comes
// from, for messages. Throws HVD_E_INVALID, with the names of the interfaces, if the list matches none of them.
std::vector<Interface> choose_interfaces(const std::string& wanted, const char* source);

}  // namespace hvd::tcp
