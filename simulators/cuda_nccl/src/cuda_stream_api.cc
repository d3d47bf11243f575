// cu* functions for streams, events, captures and graphs.
#include "counters.h"
#include "runtime.h"
#include "streams.h"

namespace {

using namespace cusim;

// A stream that is asked about or waited for; no work is given to it.
CUresult known(CUstream handle, StreamRef* stream) {
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  *stream = find(handle);
  if (*stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return static_cast<CUresult>((*stream)->context->broken.load());
}

CUresult known(CUevent handle, EventRef* event) {
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  *event = find(handle);
  if (*event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return static_cast<CUresult>((*event)->context->broken.load());
}

// Waits and questions: not about what is captured, nor where they disturb a capture.
CUresult ask(CUstream handle, StreamRef* stream) {
  const CUresult error = known(handle, stream);
  if (error != CUDA_SUCCESS) return error;
  CUstreamCaptureStatus status;
  capture_status(**stream, &status);
  if (status != kNotCapturing) return conflict((*stream)->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return prohibited();
}

CUresult ask(CUevent handle, EventRef* event) {
  const CUresult error = known(handle, event);
  if (error != CUDA_SUCCESS) return error;
  if ((*event)->captured != nullptr) return conflict((*event)->captured, CUDA_ERROR_CAPTURED_EVENT);
  return prohibited();
}

}  // namespace

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (out == nullptr || flags > kStreamNonBlocking) return CUDA_ERROR_INVALID_VALUE;
  const StreamRef stream = make_stream(context, flags, priority);
  add(stream);
  *out = stream.get();
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamCreate(CUstream* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return CUDA_ERROR_INVALID_HANDLE;
  const StreamRef stream = take(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->queue->close();
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamQuery(CUstream handle) {
  SIM_CALLED;
  StreamRef stream;
  CUresult error = ask(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  if (stream->queue->query() == topsErrorNotReady) return CUDA_ERROR_NOT_READY;
  return static_cast<CUresult>(stream->context->broken.load());
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  SIM_CALLED;
  StreamRef stream;
  CUresult error = ask(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  stream->queue->synchronize();
  return static_cast<CUresult>(stream->context->broken.load());
}

SIM_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = known(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  *context = stream->context;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = known(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = known(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  *priority = stream->queue->priority();
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  SIM_CALLED;
  StreamRef stream;
  EventRef event;
  CUresult error = usable(handle, &stream);
  if (error == CUDA_SUCCESS) error = known(event_handle, &event);
  return error != CUDA_SUCCESS ? error : hold_back(*stream, *event);
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream handle, void (*fn)(void*), void* data) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = usable(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return give(*stream, [fn, data] {
    fn(data);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuEventCreate(CUevent* out, unsigned flags) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (out == nullptr || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->context = context;
  event->real = std::make_unique<sim::Event>(context->device, flags);
  add(event);
  *out = event.get();
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  return take(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  SIM_CALLED;
  StreamRef stream;
  EventRef event;
  CUresult error = usable(handle, &stream);
  if (error == CUDA_SUCCESS) error = known(event_handle, &event);
  if (error != CUDA_SUCCESS) return error;
  return event->context == stream->context ? record(*stream, *event) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuEventQuery(CUevent handle) {
  SIM_CALLED;
  EventRef event;
  const CUresult error = ask(handle, &event);
  if (error != CUDA_SUCCESS) return error;
  const auto last = event->real->last();
  if (last != nullptr && !last->passed()) return CUDA_ERROR_NOT_READY;
  return static_cast<CUresult>(event->context->broken.load());
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  SIM_CALLED;
  EventRef event;
  const CUresult error = ask(handle, &event);
  if (error != CUDA_SUCCESS) return error;
  if (const auto last = event->real->last()) last->wait();
  return static_cast<CUresult>(event->context->broken.load());
}

SIM_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent stop) {
  SIM_CALLED;
  EventRef from, to;
  CUresult error = known(start, &from);
  if (error == CUDA_SUCCESS) error = known(stop, &to);
  if (error != CUDA_SUCCESS) return error;
  const auto a = from->real->last(), b = to->real->last();
  if (!from->real->timed() || !to->real->timed() || a == nullptr || b == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!a->passed() || !b->passed()) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(b->when() - a->when()).count();
  return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent stop) {
  return cuEventElapsedTime(milliseconds, start, stop);
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  if (mode == nullptr || *mode < kCaptureGlobal || *mode > kCaptureRelaxed) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, mode_of_thread());
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = known(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  if (stream->legacy) {
    for (const StreamRef& other : streams_of(stream->context)) {
      CUstreamCaptureStatus theirs;
      capture_status(*other, &theirs);
      if (theirs != kNotCapturing && other->blocking()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return capture_status(*stream, status);
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = usable(handle, &stream);
  return error != CUDA_SUCCESS ? error : begin_capture(*stream, mode);
}

SIM_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = usable(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : end_capture(*stream, graph);
}

SIM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (made == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *made = new Graph(*graph);
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream handle) {
  SIM_CALLED;
  StreamRef stream;
  const CUresult error = usable(handle, &stream);
  if (error != CUDA_SUCCESS) return error;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return give(*stream, [work = graph->work] {
    for (const auto& item : work) item();
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) { return cuGraphDestroy(graph); }
