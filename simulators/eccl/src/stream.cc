// The worker of a stream. Detached: it holds the stream, and no thread ever joins it.
#include "stream.h"

#include <thread>

#include "runtime.h"

namespace sim {

void Stream::push(Item item) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(item));
  ++queued_;
  if (!running_) {
    running_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  } else {
    changed_.notify_all();
  }
}

void Stream::run() {
  on_stream_thread() = true;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (item.costs && settings().delay.count() > 0) std::this_thread::sleep_for(settings().delay);
    topsError_t result = topsErrorLaunchFailure;
    try {
      result = item.fn();
    } catch (...) {  // thrown by a kernel; there is no caller to rethrow it to
    }
    item.fn = nullptr;  // objects that it kept alive are destroyed before the stream counts as idle
    lock.lock();
    if (result != topsSuccess && failure_ == topsSuccess) failure_ = result;
    ++done_;
    changed_.notify_all();
  }
}

topsError_t Stream::take_failure() {
  const topsError_t failure = failure_;
  failure_ = topsSuccess;
  return failure;
}

topsError_t Stream::query() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ < queued_ ? topsErrorNotReady : take_failure();
}

topsError_t Stream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t until = queued_;
  changed_.wait(lock, [&] { return done_ >= until; });
  return take_failure();
}

void Stream::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace sim
