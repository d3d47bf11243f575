// The tops* functions for devices, streams, events and launches (tops_runtime.h). Arguments are checked here, the work
// is done in device.h, stream.h and event.h.
#include <tops_runtime.h>

#include <cstdio>
#include <cstring>

#include "device.h"
#include "memory.h"
#include "runtime.h"

using sim::enter;
using sim::report;

namespace {

const struct {
  topsError_t code;
  const char *name, *text;
} kErrors[] = {
    {topsSuccess, "topsSuccess", "no error"},
    {topsErrorInvalidValue, "topsErrorInvalidValue", "an argument is out of range, or belongs to another device"},
    {topsErrorOutOfMemory, "topsErrorOutOfMemory", "out of memory"},
    {topsErrorNotInitialized, "topsErrorNotInitialized", "a forked child cannot use its parent's devices"},
    {topsErrorInvalidDevicePointer, "topsErrorInvalidDevicePointer", "not a pointer to device memory"},
    {topsErrorInvalidMemcpyDirection, "topsErrorInvalidMemcpyDirection", "the pointers do not fit the direction"},
    {topsErrorNoDevice, "topsErrorNoDevice", "no device is visible"},
    {topsErrorInvalidDevice, "topsErrorInvalidDevice", "no such device"},
    {topsErrorOperatingSystem, "topsErrorOperatingSystem", "the operating system refused"},
    {topsErrorInvalidHandle, "topsErrorInvalidHandle", "not a stream or event of this device"},
    {topsErrorNotReady, "topsErrorNotReady", "not done yet"},
    {topsErrorIllegalAddress, "topsErrorIllegalAddress", "a kernel used an address that it may not"},
    {topsErrorLaunchFailure, "topsErrorLaunchFailure", "a kernel or host function failed"},
    {topsErrorNotSupported, "topsErrorNotSupported", "not supported here (called from within a stream?)"},
};

// A stream of the current device, or why not.
topsError_t usable(topsStream_t handle, sim::StreamRef* stream) {
  const topsError_t error = enter();
  if (error != topsSuccess) return error;
  if (!sim::is_device(sim::current_device())) return topsErrorNoDevice;
  *stream = sim::find_stream(handle);
  if (*stream == nullptr) return topsErrorInvalidHandle;
  return (*stream)->device() == sim::current_device() ? topsSuccess : topsErrorInvalidHandle;
}

// Any stream: asking and waiting needs no current device.
topsError_t known(topsStream_t handle, sim::StreamRef* stream) {
  const topsError_t error = enter();
  if (error != topsSuccess) return error;
  *stream = sim::find_stream(handle);
  return *stream == nullptr ? topsErrorInvalidHandle : topsSuccess;
}

topsError_t known(topsEvent_t handle, sim::EventRef* event) {
  const topsError_t error = enter();
  if (error != topsSuccess) return error;
  *event = sim::find_event(handle);
  return *event == nullptr ? topsErrorInvalidHandle : topsSuccess;
}

}  // namespace

extern "C" {

const char* topsGetErrorName(topsError_t error) {
  for (const auto& e : kErrors) {
    if (e.code == error) return e.name;
  }
  return "topsErrorUnknown";
}

const char* topsGetErrorString(topsError_t error) {
  for (const auto& e : kErrors) {
    if (e.code == error) return e.text;
  }
  return "unknown error";
}

topsError_t topsGetLastError(void) { return sim::take_last_error(); }

topsError_t topsRuntimeGetVersion(int* version) {
  if (version == nullptr) return report(topsErrorInvalidValue);
  *version = 30100;
  return topsSuccess;
}

topsError_t topsGetDeviceCount(int* count) {
  if (count == nullptr) return report(topsErrorInvalidValue);
  if (sim::is_forked_child()) return report(topsErrorNotInitialized);
  *count = static_cast<int>(sim::settings().devices.size());
  return report(*count > 0 ? topsSuccess : topsErrorNoDevice);
}

topsError_t topsSetDevice(int device) {
  const topsError_t error = enter();
  return report(error != topsSuccess ? error : sim::set_device(device));
}

topsError_t topsGetDevice(int* device) {
  if (device == nullptr) return report(topsErrorInvalidValue);
  *device = sim::current_device();
  return topsSuccess;
}

topsError_t topsDeviceGetPCIBusId(char* pci_bus_id, int len, int device) {
  if (pci_bus_id == nullptr || len < 13) return report(topsErrorInvalidValue);
  if (!sim::is_device(device)) return report(topsErrorInvalidDevice);
  snprintf(pci_bus_id, static_cast<size_t>(len), "0000:%02x:00.0",
           static_cast<unsigned>(0xe0 + sim::settings().devices[static_cast<size_t>(device)]) & 0xff);
  return topsSuccess;
}

topsError_t topsGetDeviceProperties(topsDeviceProp_t* prop, int device) {
  if (prop == nullptr) return report(topsErrorInvalidValue);
  if (!sim::is_device(device)) return report(topsErrorInvalidDevice);
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "Simulated GCU");
  snprintf(prop->gcuArchName, sizeof prop->gcuArchName, "gcu-sim");
  prop->totalGlobalMem = sim::settings().device_bytes;
  prop->major = 3;
  prop->multiProcessorCount = 1;
  prop->pciBusID = 0xe0 + sim::settings().devices[static_cast<size_t>(device)];
  return topsSuccess;
}

topsError_t topsDeviceSynchronize(void) {
  topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  for (const sim::StreamRef& stream : sim::streams_of(sim::current_device())) {
    const topsError_t failure = stream->synchronize();
    if (error == topsSuccess) error = failure;
  }
  return report(error);
}

topsError_t topsStreamCreateWithPriority(topsStream_t* stream, unsigned int, int priority) {
  if (stream == nullptr) return report(topsErrorInvalidValue);
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  if (!sim::is_device(sim::current_device())) return report(topsErrorNoDevice);
  *stream = sim::add_stream(std::make_shared<sim::Stream>(sim::current_device(), priority));
  return topsSuccess;
}

topsError_t topsStreamCreateWithFlags(topsStream_t* stream, unsigned int flags) {
  return topsStreamCreateWithPriority(stream, flags, 0);
}

topsError_t topsStreamCreate(topsStream_t* stream) { return topsStreamCreateWithFlags(stream, topsStreamDefault); }

topsError_t topsDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -1;
  return topsSuccess;
}

topsError_t topsStreamDestroy(topsStream_t handle) {
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  const sim::StreamRef stream = sim::remove_stream(handle);
  if (stream == nullptr) return report(topsErrorInvalidHandle);
  stream->close();
  return topsSuccess;
}

topsError_t topsStreamQuery(topsStream_t handle) {
  sim::StreamRef stream;
  const topsError_t error = known(handle, &stream);
  return report(error != topsSuccess ? error : stream->query());
}

topsError_t topsStreamSynchronize(topsStream_t handle) {
  sim::StreamRef stream;
  const topsError_t error = known(handle, &stream);
  return report(error != topsSuccess ? error : stream->synchronize());
}

topsError_t topsStreamWaitEvent(topsStream_t handle, topsEvent_t event_handle, unsigned int) {
  sim::StreamRef stream;
  sim::EventRef event;
  topsError_t error = known(handle, &stream);
  if (error == topsSuccess) error = known(event_handle, &event);
  if (error == topsSuccess) event->hold_back(*stream);
  return report(error);
}

topsError_t topsLaunchHostFunc(topsStream_t handle, topsHostFn_t fn, void* data) {
  if (fn == nullptr) return report(topsErrorInvalidValue);
  sim::StreamRef stream;
  const topsError_t error = usable(handle, &stream);
  if (error == topsSuccess) {
    stream->work([fn, data] {
      fn(data);
      return topsSuccess;
    });
  }
  return report(error);
}

topsError_t topsSimLaunch(topsStream_t handle, topsSimKernel_t fn, void* arg) {
  if (fn == nullptr) return report(topsErrorInvalidValue);
  sim::StreamRef stream;
  const topsError_t error = usable(handle, &stream);
  if (error == topsSuccess) {
    const int device = stream->device();
    stream->work([fn, arg, device] {
      const sim::KernelScope scope(device);
      fn(arg);
      return scope.faulted() ? topsErrorIllegalAddress : topsSuccess;
    });
  }
  return report(error);
}

topsError_t topsEventCreateWithFlags(topsEvent_t* event, unsigned int flags) {
  if (event == nullptr) return report(topsErrorInvalidValue);
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  *event = sim::add_event(std::make_shared<sim::Event>(sim::current_device(), flags));
  return topsSuccess;
}

topsError_t topsEventCreate(topsEvent_t* event) { return topsEventCreateWithFlags(event, topsEventDefault); }

topsError_t topsEventRecord(topsEvent_t event_handle, topsStream_t handle) {
  sim::StreamRef stream;
  sim::EventRef event;
  topsError_t error = usable(handle, &stream);
  if (error == topsSuccess) error = known(event_handle, &event);
  if (error == topsSuccess && event->device() != stream->device()) error = topsErrorInvalidHandle;
  if (error == topsSuccess) event->record(*stream);
  return report(error);
}

topsError_t topsEventQuery(topsEvent_t handle) {
  sim::EventRef event;
  const topsError_t error = known(handle, &event);
  if (error != topsSuccess) return report(error);
  const auto recording = event->last();
  return report(recording == nullptr || recording->passed() ? topsSuccess : topsErrorNotReady);
}

topsError_t topsEventSynchronize(topsEvent_t handle) {
  sim::EventRef event;
  const topsError_t error = known(handle, &event);
  if (error != topsSuccess) return report(error);
  const auto recording = event->last();
  if (recording != nullptr) recording->wait();
  return topsSuccess;
}

topsError_t topsEventElapsedTime(float* milliseconds, topsEvent_t start, topsEvent_t stop) {
  if (milliseconds == nullptr) return report(topsErrorInvalidValue);
  sim::EventRef from, to;
  topsError_t error = known(start, &from);
  if (error == topsSuccess) error = known(stop, &to);
  if (error != topsSuccess) return report(error);
  const auto a = from->last(), b = to->last();
  if (!from->timed() || !to->timed() || a == nullptr || b == nullptr) return report(topsErrorInvalidHandle);
  if (!a->passed() || !b->passed()) return report(topsErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(b->when() - a->when()).count();
  return topsSuccess;
}

topsError_t topsEventDestroy(topsEvent_t handle) {
  const topsError_t error = enter();
  if (error != topsSuccess) return report(error);
  return report(sim::remove_event(handle) == nullptr ? topsErrorInvalidHandle : topsSuccess);
}

}  // extern "C"
