// The server of the job's key-value store: one thread of its own, asleep when nothing happens. It needs no Python, so a
// process that holds the interpreter for long keeps on serving. The protocol is described in
// hvd_core/_bootstrap/store/__init__.py.
//
// A peer may be a stranger until it has proved the secret. Until then the server reads no byte beyond the handshake. It
// keeps kMostUnproven such connections, each for a limited time. Further ones wait in the listener's queue, and take
// the places of those that are a second old.
//
// Any thread may call. A child made by fork() has no server: its copies of the descriptors are closed at once.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>

namespace hvd::rendezvous {

inline constexpr size_t kMostKeyBytes = 1024, kMostRequestBytes = size_t{16} << 20, kMostUnproven = 256;

class Service;

class StoreServer {
 public:
  // Takes over `listener`, a listening socket, and closes it also if it throws. `handshake_ns`: the time for a proof.
  // Throws std::system_error for lack of descriptors or threads.
  StoreServer(int listener, std::string secret, int64_t handshake_ns);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // How many connections have proved the secret.
  size_t clients() const;
  // Ends the thread and closes every connection; again, or in a forked child, it does nothing. If the program has
  // closed the descriptor that wakes the thread, the thread cannot be reached: after some seconds it is left alone,
  // asleep.
  void close();

 private:
  const pid_t owner_;
  std::atomic<bool> closed_{false};
  std::unique_ptr<Service> service_;
  std::unique_ptr<std::thread> thread_;
  std::future<void> ended_;
};

}  // namespace hvd::rendezvous
