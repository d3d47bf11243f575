// The order of a communicator's operations and its end. Sockets are only shut down here; they close with the object.
#include "comm.h"

#include <sys/socket.h>

namespace sim {

Comm::Comm(int rank, int device, std::vector<Socket> peers) : rank_(rank), device_(device), peers_(std::move(peers)) {}

void Comm::issue(const std::function<void(uint64_t)>& put) {
  const std::lock_guard<std::mutex> order(issuing_);
  uint64_t place;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    place = issued_++;
  }
  put(place);
}

void Comm::run(uint64_t place, const std::function<void()>& work) {
  bool alive;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return over_ == place || failed_; });
    alive = !failed_;
  }
  if (alive) {
    try {
      work();
    } catch (const Failure& why) {
      fail(why);
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++over_;
  changed_.notify_all();
}

void Comm::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return over_ == issued_; });
}

void Comm::fail(const Failure& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_) return;
  failed_ = true;
  failure_ = why;
  for (const Socket& peer : peers_) {
    if (peer) shutdown(peer.fd(), SHUT_RDWR);
  }
  changed_.notify_all();
}

ecclResult_t Comm::state() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_.code;
}

std::string Comm::failure_text() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_.text;
}

ecclRedOp_t Comm::add_scalar(Scalar scalar) {
  const std::lock_guard<std::mutex> lock(mutex_);
  scalars_[next_scalar_] = std::move(scalar);
  return static_cast<ecclRedOp_t>(next_scalar_++);
}

bool Comm::find_scalar(ecclRedOp_t op, Scalar* scalar) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = scalars_.find(op);
  if (at == scalars_.end()) return false;
  *scalar = at->second;
  return true;
}

bool Comm::remove_scalar(ecclRedOp_t op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return scalars_.erase(op) == 1;
}

char* Comm::scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_.reset(new char[bytes]);  // not make_unique, which would fill it with zeros
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

}  // namespace sim
