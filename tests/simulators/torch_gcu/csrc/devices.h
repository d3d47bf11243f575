// Devices, streams and events of `gcu` as torch knows them. The vendor's thread-local device is the current device;
// a stream's id is the address of the vendor's stream, 0 the default stream of its device. Any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "vendor.h"

namespace torch_gcu {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

// Number of devices; 0 where the library is not usable. Never throws.
c10::DeviceIndex device_count() noexcept;
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex device);

// Makes a device current for the time of a block.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex before_;
  bool changed_;
};

inline topsStream_t native(const c10::Stream& stream) {
  return reinterpret_cast<topsStream_t>(static_cast<intptr_t>(stream.id()));
}

// The thread's current stream of a device (-1: the current device).
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream default_stream(c10::DeviceIndex device);
// One of a few streams that each device has, in turn; they live as long as the process.
c10::Stream pooled_stream(c10::DeviceIndex device, int priority);

}  // namespace torch_gcu
