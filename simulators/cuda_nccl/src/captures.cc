// Captures into graphs, and who is disturbed by them. The rules are those that the documentation gives for
// cuThreadExchangeStreamCaptureMode and cuStreamBeginCapture.
#include <algorithm>
#include <mutex>

#include "streams.h"

namespace cusim {
namespace {

struct Captures {
  std::mutex mutex;
  std::vector<CaptureRef> running;
};

Captures& captures() {
  static auto* all = new Captures;
  return *all;
}

thread_local CUstreamCaptureMode own_mode = kCaptureGlobal;

}  // namespace

CUstreamCaptureMode& mode_of_thread() { return own_mode; }

CUresult prohibited() {
  if (own_mode == kCaptureRelaxed) return CUDA_SUCCESS;
  const std::lock_guard<std::mutex> lock(captures().mutex);
  bool disturbs = false;
  for (const CaptureRef& capture : captures().running) {
    const bool own = capture->owner == std::this_thread::get_id() && capture->mode != kCaptureRelaxed;
    if (!own && !(own_mode == kCaptureGlobal && capture->mode == kCaptureGlobal)) continue;
    capture->invalid = true;
    disturbs = true;
  }
  return disturbs ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult conflict(const CaptureRef& capture, CUresult code) {
  if (capture != nullptr) capture->invalid = true;
  return code;
}

CUresult begin_capture(Stream& stream, CUstreamCaptureMode mode) {
  if (stream.legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUstreamCaptureStatus status;
  capture_status(stream, &status);
  if (status != kNotCapturing) return CUDA_ERROR_INVALID_VALUE;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  capture->origin = &stream;
  const std::lock_guard<std::mutex> lock(captures().mutex);
  captures().running.push_back(capture);
  stream.capture = capture;
  return CUDA_SUCCESS;
}

CUresult end_capture(Stream& stream, Graph** graph) {
  *graph = nullptr;
  CaptureRef capture;
  {
    const std::lock_guard<std::mutex> lock(captures().mutex);
    capture = stream.capture;
    if (capture == nullptr || capture->ended || capture->origin != &stream) {
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != kCaptureRelaxed && capture->owner != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    auto& running = captures().running;
    running.erase(std::find(running.begin(), running.end(), capture));
    stream.capture = nullptr;
    capture->ended = true;
  }
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *graph = new Graph{std::move(capture->work)};
  return CUDA_SUCCESS;
}

CUresult capture_status(Stream& stream, CUstreamCaptureStatus* status) {
  const std::lock_guard<std::mutex> lock(captures().mutex);
  *status = kNotCapturing;
  if (stream.capture != nullptr && stream.capture->ended) stream.capture = nullptr;  // one that had joined
  if (stream.capture != nullptr) *status = stream.capture->invalid ? kCaptureInvalidated : kCapturing;
  return CUDA_SUCCESS;
}

}  // namespace cusim
