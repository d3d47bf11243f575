// The options of this backend, and what they come to; see settings.h.
#include "settings.h"

#include <cstdlib>

#include "host_kernels/options.h"
#include "shared.h"

namespace hvd::tcp {

const hvd_option kOptions[] = {
    {header_of(sizeof(hvd_option)), "iface", "str", "", "names, networks or addresses",
     "Interfaces that ranks are reached at: a comma list of names (eth0), networks (10.0.0.0/8) or addresses. Empty: "
     "HOROVOD_GLOO_IFACE, else all, and whoever connects tries them in turn."},
    {header_of(sizeof(hvd_option)), "sockets_per_peer", "int", "1", "1..16",
     "Connections to each peer; more help where the network limits a single one. Rank 0's value counts."},
    {header_of(sizeof(hvd_option)), "chunk_kib", "int", "256", "16..65536",
     "KiB of the longest message of a large operation. Rank 0's value counts."},
    {header_of(sizeof(hvd_option)), "small_kib", "int", "64", "0..16384",
     "KiB up to which a rank receives everybody's data at once instead of a share of it. Rank 0's value counts."},
    {header_of(sizeof(hvd_option)), "ring_ranks", "int", "16", "2..65535",
     "Ranks above which large allreduces go around a ring. Rank 0's value counts."},
    {header_of(sizeof(hvd_option)), "peer_timeout_s", "int", "30", "2..86400",
     "Seconds without a sign of life after which a peer's host counts as lost. The default can also be set by "
     "HOROVOD_GLOO_TIMEOUT_SECONDS."},
    {header_of(sizeof(hvd_option)), "buffer_kib", "int", "0", "0..1048576",
     "KiB of each socket's buffers; 0: the system's own tuning."},
    kIsaOption,
};
const uint64_t kOptionCount = sizeof kOptions / sizeof kOptions[0];

LocalSettings local_settings() {
  LocalSettings s = {};
  s.iface_source = "option iface (HOROVOD_BACKEND_TCP_IFACE)";
  if (!text_option("iface", &s.iface) || s.iface.empty()) {
    if (const char* legacy = std::getenv("HOROVOD_GLOO_IFACE"); legacy != nullptr && *legacy != '\0') {
      s.iface = legacy;
      s.iface_source = "HOROVOD_GLOO_IFACE";
    }
  }
  uint64_t timeout = 30;
  if (const char* legacy = std::getenv("HOROVOD_GLOO_TIMEOUT_SECONDS"); legacy != nullptr) {
    char* end = nullptr;
    const unsigned long value = std::strtoul(legacy, &end, 10);
    if (end != legacy && *end == '\0' && value >= 2 && value <= 86400) timeout = value;
  }
  s.peer_timeout_s = static_cast<uint32_t>(number_option("peer_timeout_s", timeout, 2, 86400));
  s.buffer_kib = static_cast<uint32_t>(number_option("buffer_kib", 0, 0, 1 << 20));
  return s;
}

SharedSettings shared_settings() {
  SharedSettings s;
  s.lanes = static_cast<uint32_t>(number_option("sockets_per_peer", 1, 1, 16));
  s.chunk_kib = static_cast<uint32_t>(number_option("chunk_kib", 256, 16, 65536));
  s.small_kib = static_cast<uint32_t>(number_option("small_kib", 64, 0, 16384));
  s.ring_ranks = static_cast<uint32_t>(number_option("ring_ranks", 16, 2, 65535));
  return s;
}

}  // namespace hvd::tcp
