// One timeline file, and the thread that writes it. The engine's threads only put events into the ring; this thread
// formats them and writes the file, which is valid JSON after each write: the closing bracket is written again with
// every write, by one system call.
//
// The constructor and finish() are called by the thread that drives the engine, await_end() by any other thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "engine/recorder/event_ring.h"
#include "engine/recorder/observer.h"
#include "engine/recorder/timeline_format.h"

namespace hvd::recorder {

class Timeline {
 public:
  // Writes the events of the ring from number `first` on. Throws std::system_error if the file cannot be made.
  Timeline(TimelineSettings settings, std::string path, const Observer& observer, int32_t size, const EventRing& ring,
           uint64_t first, Texts& texts);
  // Finishes it and waits.
  ~Timeline();

  // The file ends before the event with this number. Returns at once.
  void finish(uint64_t end);
  void await_end();
  // Has the thread look for events now.
  void wake();
  const std::string& path() const { return path_; }

 private:
  void run() noexcept;
  bool run_once(std::chrono::milliseconds* pause);
  void take_events();
  void open();
  void write();
  void rotate(int64_t at);
  void give_up(int error);

  const TimelineSettings settings_;
  const std::string path_, host_;
  const int32_t rank_, size_;
  const int64_t clock_offset_ns_, start_;
  const EventRing& ring_;
  uint64_t at_;  // the number of the next event

  int fd_ = -1;
  std::string out_;
  uint64_t end_of_events_ = 0;  // the offset of the closing bracket in the file
  TimelineFormat format_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool awake_ = false, finishing_ = false;
  uint64_t end_ = 0;
  std::thread thread_;
};

}  // namespace hvd::recorder
