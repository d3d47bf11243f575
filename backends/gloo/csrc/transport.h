// Gloo's TCP transport with two things added: every wait ends at the operation's deadline, and all of them can be
// interrupted from another thread.
//
// A wrapper around the transport's own context, by its public interface: Gloo's collectives create their buffers here
// and wait on them. interrupt() is for any thread; the rest is for the thread that runs the collectives.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>

namespace hvd::gloo_backend {

class Transport : public ::gloo::transport::Context {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Transport(std::shared_ptr<::gloo::transport::Context> real);

  // The waits from now on end at the deadline, and each after `patience`. What Gloo's callers ask for does not count.
  void set_limits(Clock::time_point deadline, std::chrono::milliseconds patience) {
    deadline_ = deadline;
    patience_ = patience;
  }
  // All waits end with an exception, those that have begun and all to come. Never blocks.
  void interrupt();

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
};

}  // namespace hvd::gloo_backend
