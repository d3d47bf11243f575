// How the ranks of a communicator find each other. The process that makes an id opens a rendezvous: a socket, and a
// thread that waits there. Each rank tells it the address it listens on and gets all ranks' addresses back; then each
// pair connects.
#pragma once

#include <eccl.h>

#include <string>
#include <vector>

#include "endpoint.h"

namespace sim {

// A failure of the rendezvous, as a result of ECCL's.
struct Failure {
  ecclResult_t code;
  std::string text;
};

// Opens a rendezvous and writes its address into the id. Throws Failure.
void open_rendezvous(ecclUniqueId* id);

// One connection to each peer, and an empty Socket at the own rank. Blocks, at most until the deadline. Throws Failure.
std::vector<Socket> meet(const ecclUniqueId& id, int size, int rank, Clock::time_point deadline);

// The second half of meet(), for ranks that know each other's addresses by other means: `listener` is at
// addresses[rank], the token is the same on all of them and on no others.
std::vector<Socket> connect_ranks(Listener& listener, const std::vector<Address>& addresses, const Token& token,
                                  int rank, Clock::time_point deadline);

}  // namespace sim
