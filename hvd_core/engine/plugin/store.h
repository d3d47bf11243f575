// The key-value rendezvous that backends use while a communicator is created; the engine implements it over its own
// store connection, tests over a map. Called on the thread that creates the communicator, or on a thread that the
// backend made for that purpose; an implementation must cope with both at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::plugin {

class Store {
 public:
  virtual ~Store();
  // Sets or replaces. Throws BackendError (REMOTE when the store is gone, ABORTED when the engine gives up).
  virtual void set(const std::string& key, std::string_view value) = 0;
  // Waits until the key exists. deadline_ns: absolute CLOCK_MONOTONIC; throws BackendError TIMEOUT when it passes.
  virtual std::string get(const std::string& key, int64_t deadline_ns) = 0;
  // Adds to a counter that starts at 0 and returns its new value. Counters and set() keys are not mixed.
  virtual int64_t add(const std::string& key, int64_t delta) = 0;
  // Removes the key; nothing happens when it does not exist.
  virtual void del(const std::string& key) = 0;
  // Adds one to a counter, soon: does not wait for the store, not even for one that is gone.
  virtual void count(const std::string& /*key*/) noexcept {}
  // Makes a waiting get give up soon, and all later calls fail. Any thread.
  virtual void cancel() {}
};

}  // namespace hvd::plugin
