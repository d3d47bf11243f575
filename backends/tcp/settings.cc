// The options of this backend as values; see settings.h.
#include "settings.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "host_kernels/options.h"
#include "shared.h"

namespace hvd::tcp {

LocalSettings local_settings() {
  LocalSettings s = {};
  s.iface_source = "option iface (HOROVOD_BACKEND_TCP_IFACE)";
  s.iface = option("iface", "");
  if (s.iface.empty()) {
    if (const char* legacy = std::getenv("HOROVOD_GLOO_IFACE"); legacy != nullptr && *legacy != '\0') {
      s.iface = legacy;
      s.iface_source = "HOROVOD_GLOO_IFACE";
    }
  }
  uint64_t timeout = 30;
  if (const char* legacy = std::getenv("HOROVOD_GLOO_TIMEOUT_SECONDS"); legacy != nullptr) {
    // init() has checked it: a positive number of seconds.
    const double value = std::strtod(legacy, nullptr);
    if (value > 0) timeout = static_cast<uint64_t>(std::clamp(std::ceil(value), 2.0, 86400.0));
  }
  s.peer_timeout_s = static_cast<uint32_t>(number_option("peer_timeout_s", timeout, 2, 86400));
  s.buffer_kib = static_cast<uint32_t>(number_option("buffer_kib", 0, 0, 1 << 20));
  s.encrypt = encryption_wanted();
  return s;
}

SharedSettings shared_settings() {
  SharedSettings s;
  s.sockets_per_peer = static_cast<uint32_t>(number_option("sockets_per_peer", 1, 1, 16));
  s.chunk_kib = static_cast<uint32_t>(number_option("chunk_kib", 256, 16, 65536));
  s.small_kib = static_cast<uint32_t>(number_option("small_kib", 64, 0, 16384));
  s.ring_ranks = static_cast<uint32_t>(number_option("ring_ranks", 16, 2, 65535));
  return s;
}

}  // namespace hvd::tcp
