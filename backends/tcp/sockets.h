// The settings of the sockets between ranks. Any thread.
#pragma once

#include <cstdint>

#include "host_kernels/descriptor.h"
#include "hvd/backend_addresses.hpp"
#include "shared.h"

namespace hvd::tcp {

// A new TCP socket: close-on-exec, non-blocking, without delay, with keepalive probes that give a silent peer
// `peer_timeout_s` seconds. Empty on failure, with errno set.
Descriptor make_socket(uint8_t family, uint32_t peer_timeout_s, uint32_t buffer_kib);
// The same settings for an accepted socket.
void set_up_socket(int fd, uint32_t peer_timeout_s);

}  // namespace hvd::tcp
