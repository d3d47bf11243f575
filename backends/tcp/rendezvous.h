// How the ranks of a communicator learn each other's addresses, the secret and the shared settings, through the host's
// store. Blocks until done or the deadline; called once, from create.
//
// Every other rank leaves a card; rank 0 collects them and publishes the table with everything, so that the store is
// asked 2n things, not n². Failures travel the same way: a card or a table may say that, and why, there will be none.
#pragma once

#include <cstdint>
#include <vector>

#include "address.h"
#include "settings.h"
#include "sha256.h"

namespace hvd::tcp {

constexpr uint32_t kMaxEndpoints = 8;

struct Card {
  uint32_t count;  // of endpoints; 0: this rank cannot take part, `reason` says why
  uint32_t reserved;
  Endpoint endpoints[kMaxEndpoints];
  char reason[240];
};

struct Directory {
  Digest secret;
  SharedSettings settings;
  std::vector<Card> cards;  // one per rank
};

// `mine`: this rank's card. A card without endpoints makes this fail on all ranks, with its reason.
hvd_rc meet(const hvd_comm_args& args, const Card& mine, int64_t deadline_ns, Directory* directory, hvd_error* err);

// Rank 0, once everybody is connected to it and so has read the table: removes it from the store.
void forget(const hvd_comm_args& args);

}  // namespace hvd::tcp
