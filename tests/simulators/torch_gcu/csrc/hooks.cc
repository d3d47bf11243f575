// What torch asks an accelerator beside its device guard, and the C functions that torch_gcu/__init__.py calls.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <string>

#include "allocator.h"
#include "copies.h"
#include "devices.h"

namespace torch_gcu {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return vendor_usable(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device();
    if (device >= 0) set_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Device getDeviceFromPtr(void*) const override { return {kType, current_device()}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace torch_gcu

#define TORCH_GCU_API extern "C" __attribute__((visibility("default")))

// "" or what went wrong, valid until the next call. Python holds a lock around it.
TORCH_GCU_API const char* torch_gcu_open(const char* file) {
  static std::string said;
  said = torch_gcu::open_vendor(file);
  return said.c_str();
}

TORCH_GCU_API void torch_gcu_set_opener(void (*opener)()) { torch_gcu::set_opener(opener); }

TORCH_GCU_API int torch_gcu_forked() { return torch_gcu::in_forked_child(); }

TORCH_GCU_API int torch_gcu_device_count() { return torch_gcu::device_count(); }

TORCH_GCU_API void torch_gcu_memory(int device, int64_t* allocated_peak_reserved) {
  const auto stats = torch_gcu::memory_stats(static_cast<c10::DeviceIndex>(device));
  allocated_peak_reserved[0] = stats.allocated;
  allocated_peak_reserved[1] = stats.peak;
  allocated_peak_reserved[2] = stats.reserved;
}

// 0, or -1 where the vendor refused.
TORCH_GCU_API int torch_gcu_empty_cache() {
  try {
    torch_gcu::empty_cache();
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}
