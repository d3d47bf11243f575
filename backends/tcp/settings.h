// The options of this backend as values; read once per communicator, in its constructor.
#pragma once

#include <cstdint>
#include <string>

namespace hvd::tcp {

// Those that may differ by rank.
struct LocalSettings {
  std::string iface;         // see hvd/backend_addresses.hpp
  const char* iface_source;  // the setting it comes from, for messages
  uint32_t peer_timeout_s;
  uint32_t buffer_kib;  // 0: the system's own tuning
  bool encrypt;         // connections to other hosts. All ranks must agree
};

// Those that all ranks must share; rank 0's count.
struct SharedSettings {
  uint32_t sockets_per_peer;
  uint32_t chunk_kib;   // the longest message of a large operation
  uint32_t small_kib;   // bytes that a rank may receive in an exchange of one step
  uint32_t ring_ranks;  // larger communicators use the ring for large allreduces
};

LocalSettings local_settings();
SharedSettings shared_settings();

}  // namespace hvd::tcp
