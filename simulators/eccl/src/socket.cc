// The list of open sockets, and blocking transfers with a deadline on non-blocking sockets.
#include "socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>

namespace sim {
namespace {

struct OpenSockets {
  std::mutex mutex;
  std::set<int> fds;
};

OpenSockets& open_sockets() {
  static auto* all = new OpenSockets;
  return *all;
}

void forget_and_close(int fd) {
  if (fd < 0) return;
  const std::lock_guard<std::mutex> lock(open_sockets().mutex);
  open_sockets().fds.erase(fd);
  close(fd);
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd < 0) return;
  const std::lock_guard<std::mutex> lock(open_sockets().mutex);
  open_sockets().fds.insert(fd);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    forget_and_close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() { forget_and_close(fd_); }

void lock_sockets() { open_sockets().mutex.lock(); }

void unlock_sockets() { open_sockets().mutex.unlock(); }

void close_all_sockets() {
  for (const int fd : open_sockets().fds) close(fd);
  open_sockets().fds.clear();
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count() + 1;
  return static_cast<int>(std::clamp<long long>(left, 0, 60 * 60 * 1000));
}

bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    const int ready = poll(&p, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool send_all(int fd, const void* data, size_t bytes, Clock::time_point deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(fd, POLLOUT, deadline)) return false;
    } else {
      return false;
    }
  }
  return true;
}

bool receive_all(int fd, void* data, size_t bytes, Clock::time_point deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!wait_for(fd, POLLIN, deadline)) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace sim
