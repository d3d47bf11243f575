// The entry points that TensorFlow looks for in a device plugin, and those for Python.
#include "platform.h"

#include <string>

#include "tensorflow.h"
#include "vendor.h"

#define TF_GCU_EXPORT extern "C" __attribute__((visibility("default")))

namespace tf_gcu {
namespace {

void get_device_count(const SP_Platform*, int* count, TF_Status* status) {
  const topsError_t code = vendor().topsGetDeviceCount(count);
  if (code == topsErrorNoDevice) {
    *count = 0;
  } else {
    report(code, "topsGetDeviceCount", status);
  }
}

// TensorFlow cuts tensors out of larger pieces, by adding to their addresses.
bool memory_has_addresses(TF_Status* status) {
  void* memory = nullptr;
  if (!report(vendor().topsMalloc(&memory, 1), "topsMalloc", status)) return false;
  topsPointerAttribute_t facts = {};
  const bool known = report(vendor().topsPointerGetAttributes(&facts, memory), "topsPointerGetAttributes", status);
  vendor().topsFree(memory);
  if (!known || facts.memoryType == topsMemoryTypeDevice) return known;
  tensorflow().TF_SetStatus(status, TF_FAILED_PRECONDITION,
                            "GCU: the vendor's memory has handles instead of addresses, which TensorFlow cannot use; "
                            "unset TOPS_SIM_MEMORY");
  return false;
}

void create_device(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status* status) {
  const OnDevice on(params->ordinal);
  if (!memory_has_addresses(status)) return;
  char pci[32] = "";
  if (!report(vendor().topsDeviceGetPCIBusId(pci, sizeof(pci), params->ordinal), "topsDeviceGetPCIBusId", status)) {
    return;
  }
  auto* bus = new std::string(pci);
  SP_Device& device = *params->device;
  device.struct_size = TF_GCU_SIZE(SP_Device, pci_bus_id);
  device.ordinal = params->ordinal;
  device.device_handle = bus;
  device.hardware_name = "Simulated GCU";
  device.device_vendor = "hvd-core";
  device.pci_bus_id = bus->c_str();
}

void destroy_device(const SP_Platform*, SP_Device* device) {
  delete static_cast<std::string*>(device->device_handle);
  device->device_handle = nullptr;
}

void create_device_fns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
  SP_DeviceFns& functions = *params->device_fns;
  functions.struct_size = TF_GCU_SIZE(SP_DeviceFns, get_gflops);
  functions.get_numa_node = [](const SP_Device*) { return int32_t{-1}; };
  functions.get_memory_bandwidth = [](const SP_Device*) { return int64_t{-1}; };
  functions.get_gflops = [](const SP_Device*) { return -1.0; };
}

void create_stream_executor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  fill_executor(params->stream_executor);
}

void create_timer_fns(const SP_Platform*, SP_TimerFns* timer, TF_Status*) {
  timer->struct_size = TF_GCU_SIZE(SP_TimerFns, nanoseconds);
  timer->nanoseconds = &timer_nanoseconds;
}

void describe(SE_PlatformRegistrationParams* params) {
  params->major_version = kVersion[0];
  params->minor_version = kVersion[1];
  params->patch_version = kVersion[2];
  SP_Platform& platform = *params->platform;
  platform.struct_size = TF_GCU_SIZE(SP_Platform, force_memory_growth);
  platform.name = "GCU_SIMULATOR";
  platform.type = kDeviceType;
  platform.supports_unified_memory = 0;
  platform.use_bfc_allocator = 1;
  platform.force_memory_growth = 1;
  SP_PlatformFns& functions = *params->platform_fns;
  functions.struct_size = TF_GCU_SIZE(SP_PlatformFns, destroy_timer_fns);
  functions.get_device_count = &get_device_count;
  functions.create_device = &create_device;
  functions.destroy_device = &destroy_device;
  functions.create_device_fns = &create_device_fns;
  functions.destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  functions.create_stream_executor = &create_stream_executor;
  functions.destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  functions.create_timer_fns = &create_timer_fns;
  functions.destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}

int g_refused_kernels = -1;  // not registered yet

}  // namespace
}  // namespace tf_gcu

using tf_gcu::SE_PlatformRegistrationParams;
using tf_gcu::TF_Status;

// TensorFlow's first call. Without tf_gcu.load() before it there is no vendor's library to ask.
TF_GCU_EXPORT void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  if (!tf_gcu::find_tensorflow().empty()) return;  // no way to say so; Python has
  if (tf_gcu::vendor_if_open() == nullptr) {
    tf_gcu::tensorflow().TF_SetStatus(status, tf_gcu::TF_FAILED_PRECONDITION,
                                      "GCU: this plugin is loaded by tf_gcu.load(), which opens the vendor's library");
    return;
  }
  tf_gcu::describe(params);
}

TF_GCU_EXPORT void TF_InitKernel() {
  if (tf_gcu::find_tensorflow().empty()) tf_gcu::g_refused_kernels = tf_gcu::register_kernels();
}

// "", or the reason of a failure. The text is valid until the next call.
TF_GCU_EXPORT const char* tf_gcu_open_vendor(const char* file) {
  static std::string said;
  said = tf_gcu::open_vendor(file);
  return said.c_str();
}

TF_GCU_EXPORT const char* tf_gcu_find_tensorflow() {
  static std::string said;
  said = tf_gcu::find_tensorflow();
  return said.c_str();
}

// Kernels that TensorFlow refused to register; -1: it has not asked for them.
TF_GCU_EXPORT int tf_gcu_refused_kernels() { return tf_gcu::g_refused_kernels; }

// Kernels that were launched and are not done.
TF_GCU_EXPORT int tf_gcu_queued_kernels() { return tf_gcu::queued_kernels(); }

TF_GCU_EXPORT void tf_gcu_hold_kernels(int hold) { tf_gcu::hold_kernels(hold != 0); }

// calls[4] and bytes[4], by topsMemcpyKind. Nonzero: failed.
TF_GCU_EXPORT int tf_gcu_traffic(uint64_t* calls_and_bytes) {
  topsSimTraffic_t traffic = {};
  if (tf_gcu::vendor_if_open() == nullptr) return 1;
  if (tf_gcu::vendor().topsSimTraffic(&traffic) != topsSuccess) return 1;
  for (int kind = 0; kind < 4; ++kind) {
    calls_and_bytes[kind] = traffic.calls[kind];
    calls_and_bytes[4 + kind] = traffic.bytes[kind];
  }
  return 0;
}
