// Tables of handles, and how work gets into queues. A failing piece of work breaks its context, as on a device.
#include "streams.h"

#include <map>
#include <mutex>

namespace cusim {
namespace {

struct Handles {
  std::mutex mutex;
  std::map<void*, StreamRef> streams;
  std::map<void*, EventRef> events;
  std::map<const Context*, StreamRef> legacy;
};

Handles& handles() {
  static auto* all = new Handles;
  return *all;
}

thread_local std::map<const Context*, StreamRef> own_default;

template <class Map, class Handle>
typename Map::mapped_type look_up(Map& map, Handle handle, bool remove) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto at = map.find(handle);
  if (at == map.end()) return nullptr;
  auto found = at->second;
  if (remove) map.erase(at);
  return found;
}

bool idle(Stream& stream) { return stream.queue->query() != topsErrorNotReady; }

// `later` goes on when `earlier` has come to where it is now.
void order(Stream& earlier, Stream& later) {
  if (idle(earlier)) return;
  sim::Event place(earlier.context->device, 0);
  place.record(*earlier.queue);
  place.hold_back(*later.queue);
}

// The legacy default stream waits for all blocking streams of its context, and they for it.
CUresult order_with_default(Stream& stream) {
  if (!stream.blocking()) return CUDA_SUCCESS;
  if (!stream.legacy) {
    StreamRef legacy = look_up(handles().legacy, stream.context, false);
    if (legacy != nullptr) order(*legacy, stream);
    return CUDA_SUCCESS;
  }
  for (const StreamRef& other : streams_of(stream.context)) {
    if (other.get() == &stream || !other->blocking()) continue;
    CUstreamCaptureStatus status;
    capture_status(*other, &status);
    if (status != kNotCapturing) return conflict(other->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    order(*other, stream);
  }
  return CUDA_SUCCESS;
}

}  // namespace

StreamRef make_stream(Context* context, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->queue = std::make_shared<sim::Stream>(context->device, priority);
  return stream;
}

void add(const StreamRef& stream) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().streams[stream.get()] = stream;
}

StreamRef find(CUstream handle) {
  Context* context = current();
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number > 2) return look_up(handles().streams, handle, false);
  if (context == nullptr) return nullptr;
  if (number == 2) {
    StreamRef& own = own_default[context];
    if (own == nullptr) {
      own = make_stream(context, 0, 0);
      add(own);
    }
    return own;
  }
  const std::lock_guard<std::mutex> lock(handles().mutex);
  StreamRef& legacy = handles().legacy[context];
  if (legacy == nullptr) {
    legacy = make_stream(context, 0, 0);
    legacy->legacy = true;
  }
  return legacy;
}

StreamRef take(CUstream handle) { return look_up(handles().streams, handle, true); }

std::vector<StreamRef> streams_of(const Context* context) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  std::vector<StreamRef> found;
  for (const auto& [handle, stream] : handles().streams) {
    if (stream->context == context) found.push_back(stream);
  }
  const auto legacy = handles().legacy.find(context);
  if (legacy != handles().legacy.end()) found.push_back(legacy->second);
  return found;
}

void add(const EventRef& event) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  handles().events[event.get()] = event;
}

EventRef find(CUevent handle) { return look_up(handles().events, handle, false); }

EventRef take(CUevent handle) { return look_up(handles().events, handle, true); }

CUresult usable(CUstream handle, StreamRef* stream) {
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  *stream = find(handle);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return (*stream)->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult give(Stream& stream, std::function<CUresult()> work) {
  Context* context = stream.context;
  auto item = [context, work = std::move(work)] {
    if (context->broken == 0) {
      const CUresult result = work();
      if (result != CUDA_SUCCESS) context->destroy_with(result);
    }
    return topsSuccess;
  };
  CUstreamCaptureStatus status;
  capture_status(stream, &status);
  if (status == kCaptureInvalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (status == kCapturing) {
    stream.capture->work.push_back(std::move(item));
    return CUDA_SUCCESS;
  }
  const CUresult error = order_with_default(stream);
  if (error == CUDA_SUCCESS) stream.queue->work(std::move(item));
  return error;
}

CUresult record(Stream& stream, Event& event) {
  CUstreamCaptureStatus status;
  capture_status(stream, &status);
  if (status == kCaptureInvalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (status == kCapturing) {
    event.captured = stream.capture;
    return CUDA_SUCCESS;
  }
  const CUresult error = order_with_default(stream);
  if (error != CUDA_SUCCESS) return error;
  event.captured = nullptr;
  event.real->record(*stream.queue);
  return CUDA_SUCCESS;
}

CUresult hold_back(Stream& stream, Event& event) {
  CUstreamCaptureStatus status;
  capture_status(stream, &status);
  if (status == kCaptureInvalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (event.captured != nullptr) {
    if (event.captured->ended) return conflict(event.captured, CUDA_ERROR_CAPTURED_EVENT);
    if (status == kCapturing && stream.capture != event.captured) {
      return conflict(stream.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (stream.legacy) return conflict(event.captured, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    stream.capture = event.captured;  // the stream takes part in the capture from here on
    return CUDA_SUCCESS;
  }
  if (status == kCapturing) {
    return event.real->last() == nullptr ? CUDA_SUCCESS : conflict(stream.capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  const CUresult error = order_with_default(stream);
  if (error == CUDA_SUCCESS) event.real->hold_back(*stream.queue);
  return error;
}

}  // namespace cusim
