// What the options of this backend come to. Values; read once per communicator, in create (settings.cc).
#pragma once

#include <cstdint>
#include <string>

#include "hvd/backend_abi.h"

namespace hvd::tcp {

// Those that may differ by rank.
struct LocalSettings {
  std::string iface;         // see interfaces.h
  const char* iface_source;  // what to name in messages about it
  uint32_t peer_timeout_s;
  uint32_t buffer_kib;  // 0: the system's own tuning
};

// Those that all ranks must share; rank 0's count.
struct SharedSettings {
  uint32_t lanes;       // sockets per peer
  uint32_t chunk_kib;   // the longest message of a large operation
  uint32_t small_kib;   // what a rank may receive in a single step exchange
  uint32_t ring_ranks;  // larger communicators use the ring for large allreduces
};

LocalSettings local_settings();
SharedSettings shared_settings();

extern const hvd_option kOptions[];
extern const uint64_t kOptionCount;

}  // namespace hvd::tcp
