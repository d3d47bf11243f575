// Gloo's TCP transport with three things added: every wait ends at the operation's deadline, all of them can be
// interrupted from another thread, and none waits for a peer that has closed its connection.
//
// The last is for messages of which a part has been written or read. When a connection ends, Gloo wakes the waits for
// messages that have not begun, and never those.
//
// A wrapper around the transport's own context, by its public interface: Gloo's collectives create their buffers here
// and wait on them. interrupt() is for any thread, look_after_peers() for one; the rest is for the thread that runs the
// collectives.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace hvd::gloo_backend {

class Transport : public ::gloo::transport::Context {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Transport(std::shared_ptr<::gloo::transport::Context> real);

  // All waits from now on end at the deadline, and each after `patience`. The timeouts of Gloo's callers do not count.
  void set_limits(Clock::time_point deadline, std::chrono::milliseconds patience) {
    deadline_ = deadline;
    patience_ = patience;
  }
  // All waits end with an exception, those that have begun and all to come. Never blocks.
  void interrupt();
  // Posts the buffers that look_after_peers() checks. Call it once, when all pairs are connected.
  void post_sentinels();
  // Lets waits for messages from and to peers that have closed their connections end. Never blocks.
  void look_after_peers();

  std::unique_ptr<::gloo::transport::Pair>& getPair(int rank) override { return real_->getPair(rank); }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int rank) override { return real_->createPair(rank); }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* ptr, size_t size) override;

 private:
  class Buffer;

  const std::shared_ptr<::gloo::transport::Context> real_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::chrono::milliseconds patience_ = std::chrono::hours(100);
  std::atomic<bool> interrupted_{false};
  std::mutex mutex_;
  std::set<Buffer*> buffers_;
  // By rank: a receive of a message that no peer sends, which ends with the connection. Empty for this rank.
  std::vector<std::unique_ptr<::gloo::transport::UnboundBuffer>> sentinels_;
  char nothing_ = 0;        // the memory of these receives
  std::vector<bool> lost_;  // written under the mutex, by post_sentinels() and look_after_peers()
};

}  // namespace hvd::gloo_backend
