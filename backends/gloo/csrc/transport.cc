// See transport.h.
#include "transport.h"

#include <gloo/common/error.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace hvd::gloo_backend {

using ::gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

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

  // Gloo's collectives do not look at what these return; an exception they pass on.
  bool waitRecv(int* rank, milliseconds) override {
    check();
    if (!real_->waitRecv(rank, left())) check();
    return true;
  }
  bool waitSend(int* rank, milliseconds) override {
    check();
    if (!real_->waitSend(rank, left())) check();
    return true;
  }
  void abortWaitRecv() override { real_->abortWaitRecv(); }
  void abortWaitSend() override { real_->abortWaitSend(); }

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override { real_->send(to, slot, offset, bytes); }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override { real_->recv(from, slot, offset, bytes); }
  void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
    real_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  void check() const {
    if (transport_.interrupted_) throw ::gloo::IoException("the communicator was interrupted");
  }
  // Gloo counts its own timeout anew with each wait.
  milliseconds left() const {
    const auto rest = std::chrono::duration_cast<milliseconds>(transport_.deadline_ - Clock::now());
    return std::clamp(rest, milliseconds(1), transport_.patience_);
  }

  Transport& transport_;
  const std::unique_ptr<UnboundBuffer> real_;
};

Transport::Transport(std::shared_ptr<::gloo::transport::Context> real)
    : Context(real->rank, real->size), real_(std::move(real)) {}

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

}  // namespace hvd::gloo_backend
