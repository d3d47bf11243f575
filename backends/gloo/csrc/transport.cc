// See transport.h.
#include "transport.h"

#include <gloo/common/error.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace hvd::gloo_backend {

using ::gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

namespace {
// Gloo's collectives begin theirs with a small number.
constexpr uint64_t kSentinelSlot = ~uint64_t{0};
}  // namespace

class Transport::Buffer : public UnboundBuffer {
 public:
  Buffer(Transport& transport, std::unique_ptr<UnboundBuffer> real)
      : UnboundBuffer(real->ptr, real->size), transport_(transport), real_(std::move(real)) {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    transport_.buffers_.insert(this);
  }
  ~Buffer() override {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    transport_.buffers_.erase(this);
  }

  // Gloo's collectives ignore the results of these methods, but pass on an exception.
  bool waitRecv(int* rank, milliseconds) override {
    return wait(rank, from_, [this](int* peer, milliseconds time) { return real_->waitRecv(peer, time); });
  }
  bool waitSend(int* rank, milliseconds) override {
    return wait(rank, to_, [this](int* peer, milliseconds time) { return real_->waitSend(peer, time); });
  }
  void abortWaitRecv() override { real_->abortWaitRecv(); }
  void abortWaitSend() override { real_->abortWaitSend(); }

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    begin(to_, to);
    real_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    begin(from_, from);
    real_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    real_->recv(std::move(from), slot, offset, bytes);
  }

  // Wakes the waits for a lost peer. Under the transport's mutex.
  void look_after_peers() {
    if (lost_among(from_) >= 0) real_->abortWaitRecv();
    if (lost_among(to_) >= 0) real_->abortWaitSend();
  }

 private:
  using Peers = std::vector<int>;  // of messages in flight, one entry each

  void check() const {
    if (transport_.interrupted_) throw ::gloo::IoException("the communicator was interrupted");
  }
  void begin(Peers& peers, int peer) {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    peers.push_back(peer);
  }
  void end(Peers& peers, int peer) {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    const auto at = std::find(peers.begin(), peers.end(), peer);
    if (at != peers.end()) peers.erase(at);
  }
  // A lost peer of these, or -1. Under the mutex.
  int lost_among(const Peers& peers) const {
    for (const int peer : peers)
      if (transport_.lost_[static_cast<size_t>(peer)]) return peer;
    return -1;
  }

  template <class Wait>
  bool wait(int* rank, Peers& peers, Wait&& wait) {
    for (;;) {
      check();
      int peer = -1;
      bool ended = wait(&peer, left());
      if (!ended) {
        check();
        int lost;
        {
          std::lock_guard<std::mutex> lock(transport_.mutex_);
          lost = lost_among(peers);
        }
        if (lost < 0) continue;
        // Messages that came before the connection's end count. Two tries, as the peers may have been checked just now.
        // Gloo's timeout ends its connections, which are of no use any more.
        for (int tries = 0; tries < 2 && !ended; ++tries) {
          try {
            ended = wait(&peer, milliseconds(1));
          } catch (const ::gloo::IoException&) {
          }
        }
        if (!ended)
          throw ::gloo::IoException("the connection to rank " + std::to_string(lost) +
                                    " of this communicator was closed by it");
      }
      end(peers, peer);
      if (rank != nullptr) *rank = peer;
      return true;
    }
  }
  // Gloo counts its own timeout anew with each wait.
  milliseconds left() const {
    const auto rest = std::chrono::duration_cast<milliseconds>(transport_.deadline_ - Clock::now());
    return std::clamp(rest, milliseconds(1), transport_.patience_);
  }

  Transport& transport_;
  const std::unique_ptr<UnboundBuffer> real_;
  Peers from_, to_;  // under the transport's mutex
};

Transport::Transport(std::shared_ptr<::gloo::transport::Context> real)
    : Context(real->rank, real->size), real_(std::move(real)), lost_(static_cast<size_t>(size)) {}

std::unique_ptr<UnboundBuffer> Transport::createUnboundBuffer(void* ptr, size_t size) {
  return std::make_unique<Buffer>(*this, real_->createUnboundBuffer(ptr, size));
}

// The flag first: a wait that has not seen it finds the buffer's own, which stays set until a wait takes it.
void Transport::interrupt() {
  interrupted_ = true;
  std::lock_guard<std::mutex> lock(mutex_);
  for (Buffer* const buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

void Transport::post_sentinels() {
  sentinels_.resize(static_cast<size_t>(size));
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    auto& sentinel = sentinels_[static_cast<size_t>(peer)];
    sentinel = real_->createUnboundBuffer(&nothing_, sizeof nothing_);
    try {
      sentinel->recv(peer, kSentinelSlot);
    } catch (const ::gloo::IoException&) {
      // The peer has made this communicator and destroyed it again already, or it was lost since. An operation that
      // needs the peer fails and names it.
      std::lock_guard<std::mutex> lock(mutex_);
      lost_[static_cast<size_t>(peer)] = true;
    }
  }
}

void Transport::look_after_peers() {
  for (size_t peer = 0; peer < sentinels_.size(); ++peer) {
    if (sentinels_[peer] == nullptr || lost_[peer]) continue;
    try {
      // Told to stop before it begins, a wait does nothing but tell of an error.
      sentinels_[peer]->abortWaitRecv();
      sentinels_[peer]->waitRecv(nullptr, std::chrono::hours(1));
    } catch (const ::gloo::IoException&) {
      std::lock_guard<std::mutex> lock(mutex_);
      lost_[peer] = true;
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (Buffer* const buffer : buffers_) buffer->look_after_peers();
}

}  // namespace hvd::gloo_backend
