// Shared by the whole library: settings from the environment, the calling thread's state, and the handling of a fork.
// Any thread. Nothing is ever destroyed, because streams' threads may outlive exit().
#pragma once

#include <tops_runtime.h>

#include <chrono>
#include <cstddef>
#include <vector>

namespace sim {

// The names of the environment variables of a library that is made of these sources (tops_names.cc).
struct Names {
  const char *devices, *visible, *device_bytes, *memory, *delay, *timeout;
};
extern const Names kNames;

struct Settings {
  std::vector<int> devices;         // TOPS_SIM_DEVICES and TOPS_VISIBLE_DEVICES: the machine's number of each ordinal
  size_t device_bytes;              // TOPS_SIM_DEVICE_BYTES: memory of each device, 16 GiB
  bool handles;                     // TOPS_SIM_MEMORY=handle
  std::chrono::microseconds delay;  // TOPS_SIM_DELAY_US: before each item of work on a stream
  std::chrono::milliseconds quiet;  // ECCL_SIM_TIMEOUT_S: how long a collective may go on without a byte moving
};

// Read from the environment at the first call.
const Settings& settings();

// First line of every function that uses devices: remembers that this process does, and refuses in a forked child and
// on a stream's thread (a host function or a kernel that calls back).
topsError_t enter();
// The same for functions that do not use a device, and may be called before a fork.
bool is_forked_child();

// Remembers a failure as the thread's last one.
topsError_t report(topsError_t error);
topsError_t take_last_error();

// True on the threads of streams.
bool& on_stream_thread();

}  // namespace sim
