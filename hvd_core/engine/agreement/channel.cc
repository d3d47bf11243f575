// See channel.h.
#include "engine/agreement/channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace hvd::agreement {

size_t ShmChannel::recv(char* into, size_t room) {
  size_t n = in_.read(into, room);
  if (n == 0) return 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (in_.counters->writer_waits.load(std::memory_order_relaxed) != 0 && in_.counters->writer_waits.exchange(0) != 0)
    peer_.ring();
  return n;
}

size_t TcpChannel::send(std::string_view bytes) {
  ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) return static_cast<size_t>(n);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  throw ChannelClosed(std::string("control connection: ") + std::strerror(errno));
}

size_t TcpChannel::recv(char* into, size_t room) {
  ssize_t n = ::recv(fd_, into, room, MSG_DONTWAIT);
  if (n > 0) return static_cast<size_t>(n);
  if (n == 0) throw ChannelClosed("control connection closed by the peer");
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  throw ChannelClosed(std::string("control connection: ") + std::strerror(errno));
}

}  // namespace hvd::agreement
