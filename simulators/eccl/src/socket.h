// Sockets that end with their owner, and with a fork: a child that kept its parent's connections open would hide the
// parent's death from the peers.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

namespace sim {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);  // takes it over; -1: none
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Around a fork, see runtime.cc. The child calls close_all_sockets when no thread holds the lock.
void lock_sockets();
void unlock_sockets();
void close_all_sockets();

// Moves all bytes before the deadline, or returns false. `fd` is non-blocking.
bool send_all(int fd, const void* data, size_t bytes, Clock::time_point deadline);
bool receive_all(int fd, void* data, size_t bytes, Clock::time_point deadline);
// Waits until `events` (poll's) or the deadline; false at the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline);
// Milliseconds until then, for poll: at least 0, rounded up.
int milliseconds_until(Clock::time_point deadline);

}  // namespace sim
