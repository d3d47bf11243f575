// The tops* functions for memory and copies (tops_runtime.h). Arguments are checked at the call; a copy itself is an
// item of a stream that keeps both allocations mapped.
#include <tops_runtime.h>

#include <atomic>
#include <cstring>

#include "device.h"
#include "memory.h"
#include "runtime.h"

using sim::enter;
using sim::report;

namespace {

// What topsSimTraffic() tells, by direction.
std::atomic<uint64_t> copies[4], copied_bytes[4];

bool is_device_memory(const void* p) {
  const sim::Found found = sim::find(p);
  return found.arithmetic || (found.memory != nullptr && found.memory->on_device());
}

topsError_t span_of(const void* p, size_t bytes, bool device_side, sim::Span* span) {
  if (!device_side) return sim::host_span(p, bytes, span);
  return sim::device_span(p, bytes, sim::current_device(), span);
}

topsError_t queue_copy(void* dst, const void* src, size_t bytes, topsMemcpyKind kind, topsStream_t handle,
                       sim::StreamRef* stream) {
  topsError_t error = enter();
  if (error != topsSuccess) return error;
  *stream = sim::find_stream(handle);
  if (*stream == nullptr || (*stream)->device() != sim::current_device()) return topsErrorInvalidHandle;
  if (bytes == 0) return topsSuccess;
  bool to_device = kind == topsMemcpyHostToDevice || kind == topsMemcpyDeviceToDevice;
  bool from_device = kind == topsMemcpyDeviceToHost || kind == topsMemcpyDeviceToDevice;
  if (kind == topsMemcpyDefault) {
    to_device = is_device_memory(dst);
    from_device = is_device_memory(src);
  } else if (kind < topsMemcpyHostToHost || kind > topsMemcpyDefault) {
    return topsErrorInvalidMemcpyDirection;
  }
  sim::Span to, from;
  error = span_of(dst, bytes, to_device, &to);
  if (error == topsSuccess) error = span_of(src, bytes, from_device, &from);
  if (error != topsSuccess) return error;
  const int direction = from_device ? (to_device ? topsMemcpyDeviceToDevice : topsMemcpyDeviceToHost)
                                    : (to_device ? topsMemcpyHostToDevice : topsMemcpyHostToHost);
  ++copies[direction];
  copied_bytes[direction] += bytes;
  (*stream)->work([to, from, bytes] {
    memmove(to.data, from.data, bytes);
    return topsSuccess;
  });
  return topsSuccess;
}

topsError_t queue_set(void* dst, int value, size_t bytes, topsStream_t handle, sim::StreamRef* stream) {
  topsError_t error = enter();
  if (error != topsSuccess) return error;
  *stream = sim::find_stream(handle);
  if (*stream == nullptr || (*stream)->device() != sim::current_device()) return topsErrorInvalidHandle;
  if (bytes == 0) return topsSuccess;
  sim::Span to;
  error = sim::device_span(dst, bytes, sim::current_device(), &to);
  if (error != topsSuccess) return error;
  (*stream)->work([to, value, bytes] {
    memset(to.data, value, bytes);
    return topsSuccess;
  });
  return topsSuccess;
}

}  // namespace

extern "C" {

topsError_t topsMalloc(void** ptr, size_t bytes) {
  if (ptr == nullptr) return report(topsErrorInvalidValue);
  *ptr = nullptr;
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  if (!sim::is_device(sim::current_device())) return report(topsErrorNoDevice);
  if (bytes == 0) return topsSuccess;
  const sim::MemoryRef memory = sim::allocate_device(sim::current_device(), bytes);
  if (memory == nullptr) return report(topsErrorOutOfMemory);
  *ptr = memory->base;
  return topsSuccess;
}

topsError_t topsFree(void* ptr) {
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  return report(ptr == nullptr ? topsSuccess : sim::release(ptr, true));
}

topsError_t topsHostMalloc(void** ptr, size_t bytes, unsigned int) {
  if (ptr == nullptr) return report(topsErrorInvalidValue);
  *ptr = nullptr;
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  if (bytes == 0) return topsSuccess;
  const sim::MemoryRef memory = sim::allocate_pinned(sim::current_device(), bytes);
  if (memory == nullptr) return report(topsErrorOutOfMemory);
  *ptr = memory->base;
  return topsSuccess;
}

topsError_t topsHostFree(void* ptr) {
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  return report(ptr == nullptr ? topsSuccess : sim::release(ptr, false));
}

topsError_t topsMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  if (free_bytes == nullptr || total_bytes == nullptr) return report(topsErrorInvalidValue);
  *total_bytes = sim::settings().device_bytes;
  *free_bytes = *total_bytes - sim::used_on(sim::current_device());
  return topsSuccess;
}

topsError_t topsPointerGetAttributes(topsPointerAttribute_t* attributes, const void* ptr) {
  if (attributes == nullptr) return report(topsErrorInvalidValue);
  const sim::Found found = sim::find(ptr);
  if (found.arithmetic || found.memory == nullptr) return report(topsErrorInvalidValue);
  const bool device = found.memory->on_device();
  *attributes = topsPointerAttribute_t();
  attributes->memoryType = found.memory->type;
  attributes->device = found.memory->device;
  (device ? attributes->device_pointer : attributes->host_pointer) = const_cast<void*>(ptr);
  return topsSuccess;
}

topsError_t topsMemcpyAsync(void* dst, const void* src, size_t bytes, topsMemcpyKind kind, topsStream_t handle) {
  sim::StreamRef stream;
  return report(queue_copy(dst, src, bytes, kind, handle, &stream));
}

topsError_t topsMemcpy(void* dst, const void* src, size_t bytes, topsMemcpyKind kind) {
  sim::StreamRef stream;
  const topsError_t error = queue_copy(dst, src, bytes, kind, nullptr, &stream);
  return report(error != topsSuccess ? error : stream->synchronize());
}

topsError_t topsMemsetAsync(void* dst, int value, size_t bytes, topsStream_t handle) {
  sim::StreamRef stream;
  return report(queue_set(dst, value, bytes, handle, &stream));
}

topsError_t topsMemset(void* dst, int value, size_t bytes) {
  sim::StreamRef stream;
  const topsError_t error = queue_set(dst, value, bytes, nullptr, &stream);
  return report(error != topsSuccess ? error : stream->synchronize());
}

topsError_t topsSimSubBuffer(void** view, void* base, size_t offset, size_t bytes) {
  if (view == nullptr) return report(topsErrorInvalidValue);
  const topsError_t error = enter();
  return report(error != topsSuccess ? error : sim::view_of(base, offset, bytes, view));
}

topsError_t topsSimTraffic(topsSimTraffic_t* traffic) {
  if (traffic == nullptr) return report(topsErrorInvalidValue);
  for (int direction = 0; direction < 4; ++direction) {
    traffic->calls[direction] = copies[direction];
    traffic->bytes[direction] = copied_bytes[direction];
  }
  return topsSuccess;
}

void* topsSimAddress(const void* device_ptr, size_t bytes) { return sim::KernelScope::address(device_ptr, bytes); }

}  // extern "C"
