// How the ranks of a communicator find each other. The process that makes an id opens a meeting point and a thread that
// waits there; each rank tells it where it listens and gets everybody's address back; then each pair connects.
#pragma once

#include <eccl.h>

#include <string>
#include <vector>

#include "endpoint.h"

namespace sim {

// What goes wrong on the way, as ECCL's results.
struct Failure {
  ecclResult_t code;
  std::string text;
};

// Opens a meeting point and describes it. Throws Failure.
void open_meeting(ecclUniqueId* id);

// Meets the others: one connection for each peer, none at the own rank. Blocks, at most until the deadline. Throws
// Failure.
std::vector<Socket> meet(const ecclUniqueId& id, int size, int rank, Clock::time_point deadline);

// The second half of that, for ranks that know each other's addresses by other means: `listener` is at
// addresses[rank], the token is the same on all of them and on no others.
std::vector<Socket> connect_ranks(Listener& listener, const std::vector<Address>& addresses, const Token& token,
                                  int rank, Clock::time_point deadline);

}  // namespace sim
