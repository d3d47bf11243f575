// Recordings outlive their event: a queue that waits for one holds it.
#include "event.h"

namespace sim {

void Recording::pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  passed_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

void Recording::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

bool Recording::passed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return passed_;
}

std::chrono::steady_clock::time_point Recording::when() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return when_;
}

void Event::record(Stream& stream) {
  auto recording = std::make_shared<Recording>();
  const std::lock_guard<std::mutex> lock(mutex_);
  last_ = recording;
  stream.mark([recording] {
    recording->pass();
    return topsSuccess;
  });
}

void Event::hold_back(Stream& stream) {
  auto recording = last();
  if (recording == nullptr || recording->passed()) return;
  stream.mark([recording] {
    recording->wait();
    return topsSuccess;
  });
}

std::shared_ptr<Recording> Event::last() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_;
}

}  // namespace sim
