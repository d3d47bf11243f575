// See devices.h. At the end: how torch reaches all this (the device guard).
#include "devices.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <vector>

#include "allocator.h"

namespace torch_gcu {
namespace {

constexpr size_t kStreamsPerDevice = 8;

thread_local std::map<c10::DeviceIndex, c10::StreamId> t_current;

c10::DeviceIndex index_of(c10::DeviceIndex device) { return device < 0 ? current_device() : device; }

}  // namespace

c10::DeviceIndex device_count() noexcept {
  try {
    int count = 0;
    TORCH_GCU_CALL(topsGetDeviceCount, &count);
    return static_cast<c10::DeviceIndex>(count);
  } catch (const std::exception&) {
    return 0;
  }
}

c10::DeviceIndex current_device() {
  int device = 0;
  TORCH_GCU_CALL(topsGetDevice, &device);
  return static_cast<c10::DeviceIndex>(device);
}

void set_device(c10::DeviceIndex device) { TORCH_GCU_CALL(topsSetDevice, device); }

OnDevice::OnDevice(c10::DeviceIndex device) : before_(current_device()), changed_(device >= 0 && device != before_) {
  if (changed_) set_device(device);
}

OnDevice::~OnDevice() {
  if (changed_ && vendor_usable()) (void)vendor().topsSetDevice(before_);
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, index_of(device)));
}

c10::Stream current_stream(c10::DeviceIndex device) {
  device = index_of(device);
  const auto found = t_current.find(device);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), found == t_current.end() ? 0 : found->second);
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  const auto before = current_stream(stream.device_index());
  t_current[stream.device_index()] = stream.id();
  return before;
}

c10::Stream pooled_stream(c10::DeviceIndex device, int priority) {
  struct Pool {
    std::vector<topsStream_t> streams;
    size_t next = 0;
  };
  static auto& mutex = *new std::mutex;
  static auto& pools = *new std::map<std::pair<c10::DeviceIndex, int>, Pool>;
  device = index_of(device);
  std::lock_guard lock(mutex);
  auto& pool = pools[{device, priority}];
  if (pool.streams.size() < kStreamsPerDevice) {
    OnDevice on(device);
    topsStream_t stream = nullptr;
    TORCH_GCU_CALL(topsStreamCreateWithPriority, &stream, topsStreamNonBlocking, priority);
    pool.streams.push_back(stream);
  }
  const auto id = reinterpret_cast<intptr_t>(pool.streams[pool.next++ % kStreamsPerDevice]);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

namespace {

topsEvent_t event_of(void* event) { return static_cast<topsEvent_t>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) set_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (vendor_usable() && device.index() >= 0) (void)vendor().topsSetDevice(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    OnDevice on(device);
    TORCH_GCU_CALL(topsDeviceSynchronize);
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return pooled_stream(device.index(), high ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return pooled_stream(device.index(), priority < 0 ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    OnDevice on(stream.device_index());
    return finished(vendor().topsStreamQuery(native(stream)), "topsStreamQuery");
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    OnDevice on(stream.device_index());
    TORCH_GCU_CALL(topsStreamSynchronize, native(stream));
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    OnDevice on(stream.device_index());
    if (*event == nullptr) {
      topsEvent_t made = nullptr;
      const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
      TORCH_GCU_CALL(topsEventCreateWithFlags, &made, timed ? topsEventDefault : topsEventDisableTiming);
      *event = made;
    }
    TORCH_GCU_CALL(topsEventRecord, event_of(*event), native(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    OnDevice on(stream.device_index());
    TORCH_GCU_CALL(topsStreamWaitEvent, native(stream), event_of(event), 0);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || finished(vendor().topsEventQuery(event_of(event)), "topsEventQuery");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) TORCH_GCU_CALL(topsEventSynchronize, event_of(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr && vendor_usable()) (void)vendor().topsEventDestroy(event_of(event));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    float milliseconds = 0;
    TORCH_GCU_CALL(topsEventElapsedTime, &milliseconds, event_of(first), event_of(second));
    return milliseconds;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, stream);
  }

 private:
  static bool finished(topsError_t code, const char* call) {
    if (code == topsErrorNotReady) return false;
    check(code, call);
    return true;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace torch_gcu
