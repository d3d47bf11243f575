// The making of a process set's communicators, for host memory or for a type of device, which waits for the other
// members, on a thread of its own, so that the engine goes on reading its links meanwhile. All members but the thread
// itself: the thread that drives the engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/observe/affinity.h"
#include "engine/plugin/store.h"

namespace hvd::data {

class Creation {
 public:
  // `make` runs on the thread. `cores`: what the process was given. Whoever drives may be pinned, and backends count
  // what their ranks can use. The thread may outlive this object, so `make` holds all that it uses.
  Creation(std::function<std::shared_ptr<void>()> make, std::shared_ptr<plugin::Store> store,
           const observe::CoreMask& cores);
  // Gives the thread a moment to end. A backend that goes on waiting for its members keeps what it uses alive.
  ~Creation();

  // Nobody wants the result any more.
  void give_up();

  bool done();
  // True when done, false when the time is up.
  bool wait(int64_t deadline_ns);
  // Once done(): what `make` gave. Throws plugin::BackendError, or what else went wrong.
  std::shared_ptr<void> take();

 private:
  // Shared with the thread, which may outlive this object.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::shared_ptr<void> result;
    std::exception_ptr error;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::shared_ptr<plugin::Store> store_;
  std::thread thread_;
};

}  // namespace hvd::data
