// cu* functions for the process, its devices and contexts.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "context.h"
#include "counters.h"
#include "runtime.h"
#include "settings.h"
#include "streams.h"

namespace {

using namespace cusim;

constexpr struct {
  CUresult code;
  const char *name, *text;
} kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     "cannot set while device is active in this process"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

CUresult text_of(CUresult error, const char** out, bool name) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  for (const auto& e : kErrors) {
    if (e.code == error) *out = name ? e.name : e.text;
  }
  return *out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

unsigned bus_of(CUdevice device) {
  return static_cast<unsigned>(0x10 + sim::settings().devices[static_cast<size_t>(device)]);
}

// Of what may be asked of a device without a context.
CUresult checked(CUdevice device, const void* out) {
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// Waits for all streams of the context, and returns the failure of a kernel, a copy or a wait.
CUresult wait_for(Context& context) {
  for (const StreamRef& stream : streams_of(&context)) {
    CUstreamCaptureStatus status;
    capture_status(*stream, &status);
    if (status != kNotCapturing) return conflict(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    stream->queue->synchronize();
  }
  return static_cast<CUresult>(context.broken.load());
}

}  // namespace

SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char** out) { return text_of(error, out, true); }
SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char** out) { return text_of(error, out, false); }

SIM_EXPORT CUresult cuInit(unsigned flags) {
  SIM_CALLED;
  return flags != 0 ? CUDA_ERROR_INVALID_VALUE : initialise();
}

SIM_EXPORT CUresult cuDriverGetVersion(int* version) {
  SIM_CALLED;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = settings().driver_version;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetCount(int* count) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(sim::settings().devices.size());
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  SIM_CALLED;
  const CUresult error = checked(ordinal, device);
  if (error == CUDA_SUCCESS) *device = ordinal;
  return error;
}

SIM_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  SIM_CALLED;
  const CUresult error = checked(device, name);
  if (error == CUDA_SUCCESS) snprintf(name, static_cast<size_t>(length), "simulated CUDA device");
  return error;
}

SIM_EXPORT CUresult cuDeviceGetUuid_v2(void* uuid, CUdevice device) {
  SIM_CALLED;
  const CUresult error = checked(device, uuid);
  if (error != CUDA_SUCCESS) return error;
  memcpy(uuid, "simulated CUDA.", 15);
  static_cast<unsigned char*>(uuid)[15] = static_cast<unsigned char>(bus_of(device));
  return CUDA_SUCCESS;
}
SIM_EXPORT CUresult cuDeviceGetUuid(void* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

SIM_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  SIM_CALLED;
  const CUresult error = checked(device, text);
  if (error != CUDA_SUCCESS) return error;
  if (length < 13) return CUDA_ERROR_INVALID_VALUE;
  snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", bus_of(device));
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  SIM_CALLED;
  const CUresult error = checked(device, bytes);
  if (error == CUDA_SUCCESS) *bytes = sim::settings().device_bytes;
  return error;
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  SIM_CALLED;
  const CUresult error = checked(device, value);
  if (error != CUDA_SUCCESS) return error;
  switch (attribute) {
    case 1:  // threads per block
    case 2:  // their first dimension
    case 3:  // their second one
      *value = 1024;
      break;
    case 4:  // their third one
      *value = 64;
      break;
    case 5:  // blocks
      *value = 0x7fffffff;
      break;
    case 6:  // their second dimension
    case 7:  // their third one
      *value = 65535;
      break;
    case 10:  // a warp
      *value = 32;
      break;
    case 16:  // multiprocessors
      *value = 4;
      break;
    case 18:   // integrated
    case 20:   // compute mode
    case 34:   // PCI device
    case 50:   // PCI domain
    case 99:   // ATS
    case 100:  // pageable memory through the host's page tables
    case 101:
      *value = 0;
      break;
    case 19:  // mapped host memory
    case 31:  // concurrent kernels
    case 40:  // copy engines
    case 41:  // unified addresses
    case 78:  // stream priorities
    case 83:  // managed memory
    case 89:  // touched at once by both
      *value = 1;
      break;
    case 33:
      *value = static_cast<int>(bus_of(device));
      break;
    case 39:  // threads of a multiprocessor
      *value = 2048;
      break;
    case 75:
      *value = settings().arch / 10;
      break;
    case 76:
      *value = settings().arch % 10;
      break;
    case 134:  // NUMA node of the device's host memory
      *value = -1;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  SIM_CALLED;
  CUresult error = checked(device, context);
  if (error == CUDA_SUCCESS && !primary(device).active()) error = prohibited();
  if (error != CUDA_SUCCESS) return error;
  *context = &primary(device);
  return retain(device);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIM_CALLED;
  const CUresult error = enter();
  return error != CUDA_SUCCESS ? error : release(device);
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  SIM_CALLED;
  const CUresult error = checked(device, active);
  if (error != CUDA_SUCCESS) return error;
  if (flags != nullptr) *flags = 0;
  *active = primary(device).active() ? 1 : 0;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  SIM_CALLED;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = enter();
  *context = error == CUDA_SUCCESS ? current() : nullptr;
  return error;
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  if (context != nullptr && !context->active()) return CUDA_ERROR_INVALID_CONTEXT;
  set_current(context);
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  if (context == nullptr || !context->active()) return CUDA_ERROR_INVALID_CONTEXT;
  push(context);
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  SIM_CALLED;
  const CUresult error = enter();
  if (error != CUDA_SUCCESS) return error;
  Context* popped = pop();
  if (popped == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = popped;
  return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error == CUDA_SUCCESS) *device = context->device;
  return error;
}

SIM_EXPORT CUresult cuCtxSynchronize(void) {
  SIM_CALLED;
  Context* context = nullptr;
  CUresult error = enter(&context);
  if (error == CUDA_SUCCESS) error = prohibited();
  return error != CUDA_SUCCESS ? error : wait_for(*context);
}

SIM_EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIM_CALLED;
  Context* context = nullptr;
  const CUresult error = enter(&context);
  if (error != CUDA_SUCCESS) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
