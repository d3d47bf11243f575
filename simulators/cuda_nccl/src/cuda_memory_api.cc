// cu* functions for memory, pointers and copies. Arguments are checked at the call; a copy keeps both sides mapped.
#include <cstdlib>
#include <cstring>

#include "addresses.h"
#include "counters.h"
#include "runtime.h"
#include "streams.h"

namespace cusim {

bool reachable(const void* p, size_t bytes, sim::Span* span) {
  sim::Found found = sim::find(p);
  if (found.memory == nullptr || bytes > found.memory->bytes - found.offset) return false;
  span->data = found.memory->alias + found.offset;
  span->memory = std::move(found.memory);
  return true;
}

CUresult copyable(const void* p, size_t bytes, sim::Span* span, bool* pageable) {
  *pageable = sim::find(p).memory == nullptr;
  if (!*pageable) return reachable(p, bytes, span) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  span->data = static_cast<char*>(const_cast<void*>(p));
  return CUDA_SUCCESS;
}

namespace {

void* pointer(CUdeviceptr p) { return reinterpret_cast<void*>(p); }

// A wait of the host's that its caller may not know of.
void wait_for(Stream& stream) {
  static Counter& waits = counter("implicit synchronisations");
  ++waits;
  stream.queue->synchronize();
}

// Frees wait until the device is through with everything.
void wait_for_all(const Context& context) {
  static Counter& waits = counter("implicit synchronisations");
  ++waits;
  for (const StreamRef& stream : streams_of(&context)) stream->queue->synchronize();
}

CUresult copy(void* dst, const void* src, size_t bytes, CUstream handle, bool blocking) {
  StreamRef stream;
  CUresult error = usable(handle, &stream);
  if (error == CUDA_SUCCESS && blocking) error = prohibited();
  if (error != CUDA_SUCCESS || bytes == 0) return error;
  sim::Span to, from;
  bool to_pageable = false, from_pageable = false;
  error = copyable(dst, bytes, &to, &to_pageable);
  if (error == CUDA_SUCCESS) error = copyable(src, bytes, &from, &from_pageable);
  if (error != CUDA_SUCCESS) return error;
  if (to_pageable || from_pageable) {  // goes over memory of the driver's, for which it may have to wait
    CUstreamCaptureStatus status;
    capture_status(*stream, &status);
    if (status != kNotCapturing) return conflict(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (!blocking && (error = prohibited()) != CUDA_SUCCESS) return error;
  }
  std::shared_ptr<char> staged;
  if (from_pageable && !to_pageable) {
    staged = std::shared_ptr<char>(static_cast<char*>(malloc(bytes)), free);
    memcpy(staged.get(), from.data, bytes);
  }
  error = give(*stream, [to, from, staged, bytes] {
    memmove(to.data, staged != nullptr ? staged.get() : from.data, bytes);
    return CUDA_SUCCESS;
  });
  if (error != CUDA_SUCCESS) return error;
  if (blocking) {
    stream->queue->synchronize();
  } else if (to_pageable) {
    wait_for(*stream);
  }
  return static_cast<CUresult>(stream->context->broken.load());
}

CUresult set(CUdeviceptr dst, const void* pattern, size_t width, size_t count, CUstream handle) {
  StreamRef stream;
  const CUresult error = usable(handle, &stream);
  if (error != CUDA_SUCCESS || count == 0) return error;
  sim::Span to;
  if (!reachable(pointer(dst), width * count, &to) || dst % width != 0) return CUDA_ERROR_INVALID_VALUE;
  uint32_t value = 0;
  memcpy(&value, pattern, width);
  return give(*stream, [to, value, width, count] {
    for (size_t i = 0; i < count; ++i) memcpy(to.data + i * width, &value, width);
    return CUDA_SUCCESS;
  });
}

CUresult allocate(size_t bytes, Context** context) {
  CUresult error = enter(context);
  if (error == CUDA_SUCCESS) error = prohibited();
  if (error == CUDA_SUCCESS && bytes == 0) error = CUDA_ERROR_INVALID_VALUE;
  return error;
}

CUresult release(void* p, bool on_device) {
  Context* context = nullptr;
  CUresult error = enter(&context);
  if (error == CUDA_SUCCESS) error = prohibited();
  if (error != CUDA_SUCCESS || p == nullptr) return error;
  wait_for_all(*context);
  return sim::release(p, on_device) == topsSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

constexpr int kManaged = 8;  // CU_POINTER_ATTRIBUTE_IS_MANAGED

// One attribute of a pointer; `found` may be nothing.
CUresult attribute(int which, const sim::Found& found, CUdeviceptr p, void* out) {
  const sim::Memory* m = found.memory.get();
  const bool device = m != nullptr && m->on_device();
  const auto put = [out](auto value) {
    memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (which) {
    case 1:  // context
      return put(m == nullptr ? nullptr : &primary(m->device));
    case 2:  // type: host 1, device 2
      return put(static_cast<unsigned>(m == nullptr ? 0 : device ? 2 : 1));
    case 3:  // device pointer
      return put(m == nullptr ? nullptr : pointer(p));
    case 4:  // host pointer
      return put(m == nullptr || (device && m->base != m->alias) ? nullptr : pointer(p));
    case 7:  // buffer id
      return put(static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(m)));
    case kManaged:
      return put(static_cast<unsigned>(device && m->base == m->alias ? 1 : 0));
    case 9:  // ordinal
      return put(m == nullptr ? -2 : m->device);
    case 11:  // start of the range
      return put(m == nullptr ? nullptr : m->base);
    case 12:  // its size
      return put(m == nullptr ? size_t{0} : m->bytes);
    case 13:  // mapped
      return put(m == nullptr ? 0 : 1);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace cusim

using namespace cusim;

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = allocate(bytes, &context);
  if (error != CUDA_SUCCESS) return error;
  const sim::MemoryRef memory = sim::allocate_device(context->device, bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(memory->base);
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = allocate(bytes, &context);
  if (error != CUDA_SUCCESS) return error;
  if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE;  // attached to all, or to the host
  const sim::MemoryRef memory = sim::allocate_managed(context->device, bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUdeviceptr>(memory->base);
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr p) {
  SIM_CALLED;
  return release(pointer(p), true);
}

SIM_EXPORT CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = allocate(bytes, &context);
  if (error != CUDA_SUCCESS) return error;
  if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
  const sim::MemoryRef memory = sim::allocate_pinned(context->device, bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = memory->base;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

SIM_EXPORT CUresult cuMemFreeHost(void* p) {
  SIM_CALLED;
  return release(p, false);
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* p, unsigned flags) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  const sim::Found found = sim::find(p);
  if (out == nullptr || flags != 0 || found.memory == nullptr || found.memory->on_device()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = reinterpret_cast<CUdeviceptr>(p);  // addresses are unified
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  *total_bytes = sim::settings().device_bytes;
  *free_bytes = *total_bytes - sim::used_on(context->device);
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr p) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  const sim::Found found = sim::find(pointer(p));
  if (found.memory == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(found.memory->base);
  if (bytes != nullptr) *bytes = found.memory->bytes;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuPointerGetAttribute(void* out, int which, CUdeviceptr p) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  const sim::Found found = sim::find(pointer(p));
  if (out == nullptr || found.memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attribute(which, found, p, out);
}

// Answers success for any pointer, and nothing about those that it does not know.
SIM_EXPORT CUresult cuPointerGetAttributes(unsigned count, const int* which, void** out, CUdeviceptr p) {
  SIM_CALLED;
  CUresult error = enter();
  if (error == CUDA_SUCCESS && (which == nullptr || out == nullptr)) error = CUDA_ERROR_INVALID_VALUE;
  const sim::Found found = sim::find(pointer(p));
  for (unsigned i = 0; i < count && error == CUDA_SUCCESS; ++i) error = attribute(which[i], found, p, out[i]);
  return error;
}

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  SIM_CALLED;
  return copy(pointer(dst), pointer(src), bytes, stream, false);
}

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  SIM_CALLED;
  return copy(pointer(dst), pointer(src), bytes, nullptr, true);
}

SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) {
  SIM_CALLED;
  return copy(pointer(dst), src, bytes, nullptr, true);
}

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) {
  SIM_CALLED;
  return copy(dst, pointer(src), bytes, nullptr, true);
}

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream) {
  SIM_CALLED;
  return copy(pointer(dst), src, bytes, stream, false);
}

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  SIM_CALLED;
  return copy(dst, pointer(src), bytes, stream, false);
}

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  SIM_CALLED;
  return copy(pointer(dst), pointer(src), bytes, stream, false);
}

SIM_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext, CUdeviceptr src, CUcontext, size_t bytes,
                                      CUstream stream) {
  SIM_CALLED;
  return copy(pointer(dst), pointer(src), bytes, stream, false);
}

SIM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
  SIM_CALLED;
  return set(dst, &value, 1, count, stream);
}

SIM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream) {
  SIM_CALLED;
  return set(dst, &value, 4, count, stream);
}
