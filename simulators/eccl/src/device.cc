// Handles are the objects' addresses; each table is searched, so that a stale or made-up handle is found out.
#include "device.h"

#include <map>
#include <mutex>

#include "runtime.h"

namespace sim {
namespace {

thread_local int current = 0;

struct Handles {
  std::mutex mutex;
  std::map<void*, StreamRef> streams;
  std::map<void*, EventRef> events;
  std::map<int, StreamRef> defaults;
};

Handles& handles() {
  static auto* all = new Handles;
  return *all;
}

template <class Map>
typename Map::mapped_type take(Map& map, void* handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto at = map.find(handle);
  if (at == map.end()) return nullptr;
  auto found = std::move(at->second);
  map.erase(at);
  return found;
}

}  // namespace

int current_device() { return current; }

bool is_device(int device) { return device >= 0 && device < static_cast<int>(settings().devices.size()); }

topsError_t set_device(int device) {
  if (!is_device(device)) return settings().devices.empty() ? topsErrorNoDevice : topsErrorInvalidDevice;
  current = device;
  return topsSuccess;
}

topsStream_t add_stream(StreamRef stream) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  void* handle = stream.get();
  handles().streams[handle] = std::move(stream);
  return static_cast<topsStream_t>(handle);
}

StreamRef find_stream(topsStream_t handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  if (handle == nullptr) {
    StreamRef& stream = handles().defaults[current];
    if (stream == nullptr) stream = std::make_shared<Stream>(current, 0);
    return stream;
  }
  const auto at = handles().streams.find(handle);
  return at == handles().streams.end() ? nullptr : at->second;
}

StreamRef remove_stream(topsStream_t handle) { return take(handles().streams, handle); }

std::vector<StreamRef> streams_of(int device) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  std::vector<StreamRef> found;
  for (const auto& [handle, stream] : handles().streams) {
    if (stream->device() == device) found.push_back(stream);
  }
  const auto at = handles().defaults.find(device);
  if (at != handles().defaults.end()) found.push_back(at->second);
  return found;
}

topsEvent_t add_event(EventRef event) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  void* handle = event.get();
  handles().events[handle] = std::move(event);
  return static_cast<topsEvent_t>(handle);
}

EventRef find_event(topsEvent_t handle) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto at = handles().events.find(handle);
  return at == handles().events.end() ? nullptr : at->second;
}

EventRef remove_event(topsEvent_t handle) { return take(handles().events, handle); }

}  // namespace sim
