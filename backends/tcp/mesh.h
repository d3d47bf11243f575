// Connects every rank of a communicator with every other: listen, exchange_addresses, connect, prove. Blocks until done
// or the deadline; called once, from the constructor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hvd/backend.hpp"
#include "settings.h"
#include "shared.h"
#include "sockets.h"

namespace hvd::tcp {

struct Mesh {
  SharedSettings settings;
  LocalSettings local;
  // `sockets_per_peer` sockets for each peer, in rank order; closed ones at this rank's own place.
  std::vector<Descriptor> sockets;
  std::vector<Digest> keys;        // of the sockets
  std::vector<std::string> names;  // "rank 3 (10.0.0.2:4711)" for each rank, with its rank in the world
};

Mesh build_mesh(const CommInit& init, int64_t deadline_ns);

}  // namespace hvd::tcp
