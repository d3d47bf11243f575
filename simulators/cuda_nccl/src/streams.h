// Streams, events and captures behind the callers' handles, and the order that the legacy default stream makes. Any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "context.h"
#include "event.h"
#include "stream.h"

namespace cusim {

// What a capture has collected, in the order of the calls.
struct Capture {
  CUstreamCaptureMode mode = kCaptureGlobal;
  std::thread::id owner;
  Stream* origin = nullptr;
  std::atomic<bool> invalid{false}, ended{false};
  std::vector<sim::Stream::Work> work;
};
using CaptureRef = std::shared_ptr<Capture>;

struct Graph {
  std::vector<sim::Stream::Work> work;
};

struct Stream : std::enable_shared_from_this<Stream> {
  Context* context = nullptr;
  sim::StreamRef queue;
  unsigned flags = 0;
  bool legacy = false;
  CaptureRef capture;  // behind the mutex of all captures

  bool blocking() const { return (flags & kStreamNonBlocking) == 0; }
};
using StreamRef = std::shared_ptr<Stream>;

struct Event {
  Context* context = nullptr;
  std::unique_ptr<sim::Event> real;
  CaptureRef captured;  // last recorded there
};
using EventRef = std::shared_ptr<Event>;

StreamRef make_stream(Context* context, unsigned flags, int priority);
void add(const StreamRef& stream);
// Null: no such stream. The special handles mean streams of the current context.
StreamRef find(CUstream handle);
StreamRef take(CUstream handle);
std::vector<StreamRef> streams_of(const Context* context);

void add(const EventRef& event);
EventRef find(CUevent handle);
EventRef take(CUevent handle);

// A stream that the current context may be given work for.
CUresult usable(CUstream handle, StreamRef* stream);

// Queues `work`, behind the work that the legacy default stream orders before it; or hands it to the stream's capture.
CUresult give(Stream& stream, std::function<CUresult()> work);
CUresult record(Stream& stream, Event& event);
CUresult hold_back(Stream& stream, Event& event);

// Captures. `prohibited`: first line of calls that are forbidden while a thread captures (in this thread's mode);
// such a call ends the captures in question, and answers 900.
CUresult prohibited();
CUstreamCaptureMode& mode_of_thread();
CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode);
CUresult end_capture(Stream& stream, Graph** graph);
CUresult capture_status(Stream& stream, CUstreamCaptureStatus* status);
// A call on a stream or an event that has a part in a capture: ends that capture, and answers `code`.
CUresult conflict(const CaptureRef& capture, CUresult code);

}  // namespace cusim
