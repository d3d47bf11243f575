// How the ranks of a communicator learn each other's addresses, the secret and the shared settings, through the host's
// store. Blocks until done or the deadline; called once, from the constructor.
//
// Every other rank stores its addresses; rank 0 collects them and publishes one table with everything, so that the
// store is asked 2n things, not n². Failures take the same path: in place of addresses or a table there may be the
// reason why there is no communicator.
#pragma once

#include <cstdint>
#include <vector>

#include "hvd/backend.hpp"
#include "settings.h"
#include "shared.h"
#include "sockets.h"

namespace hvd::tcp {

constexpr uint32_t kMaxEndpoints = 8;

struct RankAddresses {
  uint32_t count;     // of endpoints; 0: this rank cannot take part, and `reason` says why
  uint32_t encrypts;  // 1: with HOROVOD_TLS=1
  Endpoint endpoints[kMaxEndpoints];
  char reason[240];
};

struct Directory {
  Digest secret;
  SharedSettings settings;
  std::vector<RankAddresses> ranks;
};

// The rank in the job of rank r of the communicator.
int32_t world_rank(const CommInit& init, int32_t r);

// `own`: this rank's addresses. If a rank has no address, this throws on all ranks, with that rank's reason.
Directory exchange_addresses(const CommInit& init, const RankAddresses& own, int64_t deadline_ns);

// On rank 0, once every rank is connected to it and so has read the table: deletes the table from the store.
void remove_addresses(const CommInit& init);

}  // namespace hvd::tcp
