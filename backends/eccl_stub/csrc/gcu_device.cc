// See gcu_device.h. No method blocks in the runtime: a method that waits asks again and again until its deadline.
#include "gcu_device.h"

#include <fstream>

CurrentDevice::CurrentDevice(int ordinal) : ordinal_(ordinal) {
  TOPS(topsGetDevice(&before_));
  if (before_ != ordinal_) TOPS(topsSetDevice(ordinal_));
}

CurrentDevice::~CurrentDevice() {
  if (before_ != ordinal_) eccl().topsSetDevice(before_);
}

// Passes: L1.open
int32_t GcuDevice::count() {
  int n = 0;
  const topsError_t result = eccl().topsGetDeviceCount(&n);
  if (result != topsErrorNoDevice) check_tops(result, "topsGetDeviceCount");
  return n;
}

// Passes: L1.open
GcuDevice::GcuDevice(const hvd::DeviceInit& init) : Device(init) { CurrentDevice current(init.ordinal); }

// Passes: L1.open
hvd_device_props GcuDevice::props() {
  hvd_device_props props = hvd::no_props();
  topsDeviceProp_t device;
  size_t free_bytes = 0, total_bytes = 0;
  TOPS(topsGetDeviceProperties(&device, ordinal()));
  TOPS(topsMemGetInfo(&free_bytes, &total_bytes));
  TOPS(topsDeviceGetPCIBusId(props.pci, sizeof(props.pci), ordinal()));
  props.free_bytes = free_bytes;
  props.total_bytes = total_bytes;
  props.alignment = 128;
  hvd::set_text(props.arch, device.gcuArchName);
  if (handles()) props.flags = HVD_DEVICE_HANDLES;
  std::ifstream numa("/sys/bus/pci/devices/" + std::string(props.pci) + "/numa_node");
  if (!(numa >> props.numa_node)) props.numa_node = -1;
  return props;
}

// ---------------------------------------------------------------------------------------------- streams and events

// Turns the answer of a query into true (done) or false (not yet).
static bool done(topsError_t result, const char* call) {
  if (result == topsErrorNotReady) return false;
  check_tops(result, call);
  return true;
}

// Passes: L1.streams
topsStream_t GcuDevice::stream_create(int32_t priority) {
  Stream stream = nullptr;
  TOPS(topsStreamCreateWithPriority(&stream, topsStreamNonBlocking, priority));
  return stream;
}

// Passes: L1.streams
void GcuDevice::stream_destroy(Stream stream) { TOPS(topsStreamDestroy(stream)); }

// Passes: L1.streams
bool GcuDevice::stream_query(Stream stream) { return done(eccl().topsStreamQuery(stream), "topsStreamQuery"); }

// Passes: L1.streams
bool GcuDevice::stream_sync(Stream stream, int64_t deadline_ns) {
  return hvd::poll_until(deadline_ns, [&] { return stream_query(stream); });
}

// Passes: L1.events
void GcuDevice::stream_wait_event(Stream stream, Event event) { TOPS(topsStreamWaitEvent(stream, event, 0)); }

// Passes: L1.events
topsEvent_t GcuDevice::event_create(int32_t) {
  Event event = nullptr;
  TOPS(topsEventCreateWithFlags(&event, topsEventDefault));
  return event;
}

// Passes: L1.events
void GcuDevice::event_destroy(Event event) { TOPS(topsEventDestroy(event)); }

// Passes: L1.events
void GcuDevice::event_record(Event event, Stream stream) { TOPS(topsEventRecord(event, stream)); }

// Passes: L1.events
bool GcuDevice::event_query(Event event) { return done(eccl().topsEventQuery(event), "topsEventQuery"); }

// Passes: L1.events
bool GcuDevice::event_wait(Event event, int64_t deadline_ns) {
  return hvd::poll_until(deadline_ns, [&] { return event_query(event); });
}

// Passes: L1.events
int64_t GcuDevice::event_elapsed_ns(Event from, Event to) {
  float milliseconds = 0;
  TOPS(topsEventElapsedTime(&milliseconds, from, to));
  return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

// ----------------------------------------------------------------------------------------------------------- memory

// Passes: L1.memory
void* GcuDevice::mem_alloc(int32_t kind, uint64_t bytes) {
  void* base = nullptr;
  if (kind == HVD_MEM_DEVICE) {
    TOPS(topsMalloc(&base, bytes));
  } else if (kind == HVD_MEM_PINNED) {
    TOPS(topsHostMalloc(&base, bytes, topsHostMallocDefault));
  } else {
    throw hvd::Error(HVD_E_UNSUPPORTED, "gcu memory is of the kinds DEVICE and PINNED, not " + std::to_string(kind));
  }
  return base;
}

// Passes: L1.memory
void GcuDevice::mem_free(void* base, int32_t kind) {
  if (kind == HVD_MEM_DEVICE) {
    TOPS(topsFree(base));
  } else {
    TOPS(topsHostFree(base));
  }
}

// Is device memory a handle? The runtime tells it of an allocation only.
bool GcuDevice::handles() {
  void* base = nullptr;
  topsPointerAttribute_t about;
  TOPS(topsMalloc(&base, 1));
  const topsError_t asked = eccl().topsPointerGetAttributes(&about, base);
  TOPS(topsFree(base));
  return asked == topsSuccess && about.memoryType == topsMemoryTypeScatter;
}

// Passes: L1.memory
hvd::MemInfo GcuDevice::mem_query(const void* p) {
  topsPointerAttribute_t about;
  if (eccl().topsPointerGetAttributes(&about, p) != topsSuccess) return {HVD_MEM_HOST, -1};
  return {about.memoryType == topsMemoryTypeHost ? HVD_MEM_PINNED : HVD_MEM_DEVICE, about.device};
}

// Passes: L1.copy
void GcuDevice::copy(Stream stream, hvd_buf dst, hvd_buf src, uint64_t bytes) {
  TOPS(topsMemcpyAsync(address(dst, bytes), address(src, bytes), bytes, topsMemcpyDefault, stream));
}

// Passes: L1.copy
void* GcuDevice::address(const hvd_buf& buf, uint64_t bytes, uint64_t skip) {
  const uint64_t offset = buf.offset + skip;
  if (offset == 0) return buf.base;
  topsPointerAttribute_t about;
  const bool handle = eccl().topsSimSubBuffer != nullptr &&
                      eccl().topsPointerGetAttributes(&about, buf.base) == topsSuccess &&
                      about.memoryType == topsMemoryTypeScatter;
  if (!handle) return static_cast<char*>(buf.base) + offset;
  void* view = nullptr;
  TOPS(topsSimSubBuffer(&view, buf.base, offset, bytes));
  return view;
}
