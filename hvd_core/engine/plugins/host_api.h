// The host's side of the backend interface: what a backend may call (hvd_host_api), and the store behind its store_*.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "hvd/backend_abi.h"

namespace hvd::plugins {

// The key-value store that backends use for the rendezvous while a communicator is created. The engine implements it
// over its store connection, tests over a map. The thread that creates the communicator and threads of the backend may
// call it at the same time.
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

// The functions that a backend may call: the hvd_host_api tables and the sinks behind them.
//
// Some slots (log, option) have no context argument, but their answer depends on the backend that calls. So each loaded
// backend gets a table of its own from a fixed pool. Backends are never unloaded, so tables live as long as the
// process, and the sinks are process-wide. Threads: sinks are set before backends are loaded, and any thread may call
// them, also a backend's own threads.

// (HVD_LOG_* level, backend name, file, line, text). Without a sink, WARN and above go to stderr.
using LogSink = std::function<void(int32_t, const std::string&, const char*, int32_t, const std::string&)>;
// (notify_token of the communicator). Without a sink nothing happens.
using NotifySink = std::function<void(void*)>;
// (communicator handle, seq, phase, 1 begin / 0 end). Without a sink nothing happens.
using ActivitySink = std::function<void(hvd_comm, uint64_t, const std::string&, int32_t)>;
// Called on a backend's own thread that has just announced itself; its name is set. Without a sink nothing happens.
using ThreadSink = std::function<void()>;

void set_log_sink(LogSink sink);
void set_notify_sink(NotifySink sink);
void set_activity_sink(ActivitySink sink);
void set_thread_sink(ThreadSink sink);

// Writes a line of the plugin layer itself to the log sink.
void log(int32_t level, const std::string& backend, const char* file, int32_t line, const std::string& text);

// hvd_comm_args.store points to this: a store with the communicator's private key prefix.
struct StoreScope {
  Store* store;
  std::string prefix;
  int64_t deadline_ns;  // for a store_get with deadline 0
};

// A table for one backend, alive until the process ends. Throws LoadError if the pool is empty.
const hvd_host_api* make_host_api(const std::string& backend_name);

// HOROVOD_BACKEND_<NAME>_<OPTION>, in upper case and with '_' for every other character.
std::string option_variable(const std::string& backend_name, const std::string& option);

}  // namespace hvd::plugins
