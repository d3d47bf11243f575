// Devices, and the handles of streams and events that callers hold. Any thread.
#pragma once

#include <tops_runtime.h>

#include <vector>

#include "event.h"
#include "stream.h"

namespace sim {

// The calling thread's device.
int current_device();
topsError_t set_device(int device);
bool is_device(int device);

topsStream_t add_stream(StreamRef stream);
// Null: no such stream. Handle NULL is the current device's default stream.
StreamRef find_stream(topsStream_t handle);
StreamRef remove_stream(topsStream_t handle);
// Every stream of the device, the default one included.
std::vector<StreamRef> streams_of(int device);

topsEvent_t add_event(EventRef event);
EventRef find_event(topsEvent_t handle);
EventRef remove_event(topsEvent_t handle);

}  // namespace sim
