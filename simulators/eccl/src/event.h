// Events: markers in streams' queues. An event stands for its last recording; work that waited for an earlier recording
// still waits for that one. Any thread.
#pragma once

#include <tops_runtime.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "stream.h"

namespace sim {

// One passing of a queue's place.
class Recording {
 public:
  void pass();
  void wait();
  bool passed();
  std::chrono::steady_clock::time_point when();  // only once passed

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool passed_ = false;
  std::chrono::steady_clock::time_point when_;
};

class Event {
 public:
  Event(int device, unsigned flags) : device_(device), flags_(flags) {}

  int device() const { return device_; }
  bool timed() const { return (flags_ & topsEventDisableTiming) == 0; }

  void record(Stream& stream);
  void hold_back(Stream& stream);     // what is queued from now on waits for the last recording
  std::shared_ptr<Recording> last();  // null: never recorded

 private:
  const int device_;
  const unsigned flags_;
  std::mutex mutex_;
  std::shared_ptr<Recording> last_;
};

using EventRef = std::shared_ptr<Event>;

}  // namespace sim
