// What a backend may call on us: the hvd_host_api tables and the sinks behind them.
//
// Some slots (log, option) carry no context argument, yet their answer depends on which backend calls, so every
// loaded backend is handed a table of its own, from a fixed pool: tables must live as long as the process, since
// backends are never unloaded. The sinks are process-wide for the same reason: a backend outlives any one engine.
// Thread rules: sinks are set before backends are loaded, and are called from any thread, backends' own included.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/plugin/store.h"
#include "hvd/backend_abi.h"

namespace hvd::plugin {

// (HVD_LOG_* level, backend name, file, line, text). Without a sink, WARN and above go to stderr.
using LogSink = std::function<void(int32_t, const std::string&, const char*, int32_t, const std::string&)>;
// (notify_token of the communicator). Without a sink nothing happens.
using NotifySink = std::function<void(void*)>;
// (communicator handle, seq, phase, 1 begin / 0 end). Without a sink nothing happens.
using ActivitySink = std::function<void(hvd_comm, uint64_t, const std::string&, int32_t)>;
// On a thread of the backend's own, which has just announced itself and bears its name. Without a sink nothing happens.
using ThreadSink = std::function<void()>;

void set_log_sink(LogSink sink);
void set_notify_sink(NotifySink sink);
void set_activity_sink(ActivitySink sink);
void set_thread_sink(ThreadSink sink);

// To the same sink, for this layer's own lines.
void log(int32_t level, const std::string& backend, const char* file, int32_t line, const std::string& text);

// What hvd_comm_args.store points to: a store with the communicator's private key prefix.
struct StoreScope {
  Store* store;
  std::string prefix;
  int64_t deadline_ns;  // for a store_get that leaves it to us (0)
};

// A table for one backend, alive until the process ends. Throws LoadError when the pool is empty.
const hvd_host_api* make_host_api(const std::string& backend_name);

// HOROVOD_BACKEND_<NAME>_<OPTION>, in upper case and with '_' for every other character.
std::string option_variable(const std::string& backend_name, const std::string& option);

}  // namespace hvd::plugin
