// A stream: a queue, and a thread that carries out its items in order. Created and used from any thread; the thread
// starts with the first item and ends when the stream was destroyed and everything queued is done.
#pragma once

#include <tops_runtime.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace sim {

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // An item of the queue: returns the result that the stream reports.
  using Work = std::function<topsError_t()>;

  Stream(int device, int priority) : device_(device), priority_(priority) {}

  int device() const { return device_; }
  int priority() const { return priority_; }

  // Something that costs time on a device (TOPS_SIM_DELAY_US), or only marks a place in the queue.
  void work(Work fn) { push({std::move(fn), true}); }
  void mark(Work fn) { push({std::move(fn), false}); }

  // topsErrorNotReady while something is queued; else the first failure since the last answer.
  topsError_t query();
  // Waits for the items that are queued now.
  topsError_t synchronize();
  // Takes no more items; the queued ones are still done.
  void close();

 private:
  struct Item {
    Work fn;
    bool costs;
  };

  void push(Item item);
  void run();
  topsError_t take_failure();  // with the mutex held

  const int device_, priority_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  uint64_t queued_ = 0, done_ = 0;
  bool running_ = false, closed_ = false;
  topsError_t failure_ = topsSuccess;
};

using StreamRef = std::shared_ptr<Stream>;

}  // namespace sim
