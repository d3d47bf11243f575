// See sockets.h.
#include "sockets.h"

#include <netinet/tcp.h>

#include <algorithm>

namespace hvd::tcp {
namespace {

void set(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

}  // namespace

void set_up_socket(int fd, uint32_t peer_timeout_s) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // While no data of this rank is on the way, only these probes notice that the peer's host is gone. While some is,
  // progress.cc watches the acknowledgements; TCP_USER_TIMEOUT would also end connections to a peer that lives but is
  // slow to read.
  const int seconds = static_cast<int>(std::max(peer_timeout_s, 2u));
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, seconds / 2));
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Descriptor make_socket(uint8_t family, uint32_t peer_timeout_s, uint32_t buffer_kib) {
  Descriptor fd(socket(family == 4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return fd;
  set_up_socket(fd.get(), peer_timeout_s);
  // Before connect or listen, or the window's scale is settled without it.
  if (buffer_kib > 0) {
    set(fd.get(), SOL_SOCKET, SO_SNDBUF, static_cast<int>(buffer_kib) * 1024);
    set(fd.get(), SOL_SOCKET, SO_RCVBUF, static_cast<int>(buffer_kib) * 1024);
  }
  return fd;
}

}  // namespace hvd::tcp
