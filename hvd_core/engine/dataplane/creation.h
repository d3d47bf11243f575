// Creates a process set's communicators, for host memory or for a device type, on a thread of its own: creation waits
// for the other members, and the engine must read its links meanwhile. The driver calls all functions.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/threads.h"
#include "engine/plugins/host_api.h"

namespace hvd::dataplane {

class Creation {
 public:
  // `make` runs on the thread. The thread may outlive this object, so `make` must own all objects it uses. `cores`: the
  // process's cores. The driver may be pinned to one of them, and a backend counts the cores of the calling thread.
  Creation(std::function<std::shared_ptr<void>()> make, std::shared_ptr<plugins::Store> store,
           const base::CoreMask& cores);
  // Waits a moment for the end of the thread. If the backend goes on waiting for the members, the thread is detached.
  ~Creation();

  // Cancels the store, so that the creation fails soon: the result is not needed any more.
  void cancel();

  bool done();
  // Returns true when the creation is done, false at the deadline.
  bool wait(int64_t deadline_ns);
  // Once done(): the result of `make`. Throws the exception of `make` (plugins::BackendError, ...).
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
  std::shared_ptr<plugins::Store> store_;
  std::thread thread_;
};

}  // namespace hvd::dataplane
