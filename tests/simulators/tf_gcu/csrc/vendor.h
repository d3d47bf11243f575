// The vendor's runtime as a table of functions, opened once per process from the file that Python names. Everything
// else in this folder calls it through here. Any thread.
#pragma once

#include <tops_runtime.h>

#include <string>

#include "tf_abi.h"

namespace tf_gcu {

// One line per function that is used: what is missing from the library is named in the error.
#define TF_GCU_VENDOR_FUNCTIONS(F) \
  F(topsGetDeviceCount)            \
  F(topsGetDevice)                 \
  F(topsSetDevice)                 \
  F(topsDeviceGetPCIBusId)         \
  F(topsDeviceSynchronize)         \
  F(topsGetErrorString)            \
  F(topsMalloc)                    \
  F(topsFree)                      \
  F(topsHostMalloc)                \
  F(topsHostFree)                  \
  F(topsMemGetInfo)                \
  F(topsPointerGetAttributes)      \
  F(topsMemcpy)                    \
  F(topsMemcpyAsync)               \
  F(topsMemsetAsync)               \
  F(topsStreamCreateWithFlags)     \
  F(topsStreamDestroy)             \
  F(topsStreamQuery)               \
  F(topsStreamSynchronize)         \
  F(topsStreamWaitEvent)           \
  F(topsLaunchHostFunc)            \
  F(topsEventCreateWithFlags)      \
  F(topsEventRecord)               \
  F(topsEventQuery)                \
  F(topsEventSynchronize)          \
  F(topsEventElapsedTime)          \
  F(topsEventDestroy)              \
  F(topsSimLaunch)                 \
  F(topsSimAddress)                \
  F(topsSimTraffic)

struct Vendor {
#define TF_GCU_DECLARE(name) decltype(&::name) name = nullptr;
  TF_GCU_VENDOR_FUNCTIONS(TF_GCU_DECLARE)
#undef TF_GCU_DECLARE
};

// Opens the library; a second call with success behind it does nothing. Returns "" or what went wrong.
std::string open_vendor(const std::string& file);

// Null until open_vendor() has succeeded.
const Vendor* vendor_if_open() noexcept;
const Vendor& vendor() noexcept;

// Puts the vendor's text into `status` unless `code` is success. Returns whether it is.
bool report(topsError_t code, const char* call, TF_Status* status);

// Makes a device current for the calling thread until the end of the block. TensorFlow has no such notion: each of its
// calls names the device.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  explicit OnDevice(const SP_Device* device) : OnDevice(device->ordinal) {}
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// TensorFlow's streams and events are the vendor's own, by another type: what TF_GetStream() gives to a kernel can be
// handed to any library of the vendor's.
inline topsStream_t native(SP_Stream stream) { return reinterpret_cast<topsStream_t>(stream); }
inline topsEvent_t native(SP_Event event) { return reinterpret_cast<topsEvent_t>(event); }

}  // namespace tf_gcu
