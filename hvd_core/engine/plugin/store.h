// The key-value store that backends use for the rendezvous while a communicator is created. The engine implements it
// over its store connection, tests over a map. The thread that creates the communicator and threads of the backend may
// call it at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::plugin {

class Store {
 public:
  virtual ~Store();
  // Sets or replaces a value. Throws BackendError (REMOTE if the store is gone, ABORTED after cancel()).
  virtual void set(const std::string& key, std::string_view value) = 0;
  // Waits until the key exists. deadline_ns: absolute CLOCK_MONOTONIC; throws BackendError TIMEOUT at the deadline.
  virtual std::string get(const std::string& key, int64_t deadline_ns) = 0;
  // Adds to a counter that starts at 0 and returns its new value. Counters and set() keys are not mixed.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Removes the key, if it exists.
  virtual void del(const std::string& key) = 0;
  // Adds one to a counter without waiting for the store, also if the store is gone.
  virtual void count(const std::string& /*key*/) noexcept {}
  // Makes a waiting get fail soon, and all later calls fail. Any thread.
  virtual void cancel() {}
};

}  // namespace hvd::plugin
