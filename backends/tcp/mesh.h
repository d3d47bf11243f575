// Connects every rank of a communicator with every other: listen, meet, connect, prove. Blocks until done or the
// deadline; called once, from create.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "address.h"
#include "settings.h"

namespace hvd::tcp {

struct Mesh {
  SharedSettings settings;
  LocalSettings local;
  // lanes sockets for each peer, in rank order; none at this rank's own place.
  std::vector<Descriptor> sockets;
  std::vector<std::string> names;  // "rank 3 (10.0.0.2:4711)" for each rank, with its rank in the world
};

hvd_rc build_mesh(const hvd_comm_args& args, int64_t deadline_ns, Mesh* mesh, hvd_error* err);

}  // namespace hvd::tcp
