// Memory, streams, events and copies: TensorFlow's calls in the vendor's words, one for one. Each is made on the device
// that TensorFlow names; nothing here waits but what TensorFlow says blocks.
#include <functional>
#include <memory>

#include "platform.h"
#include "tensorflow.h"
#include "vendor.h"

namespace tf_gcu {
namespace {

using Device = const SP_Device*;

// ----------------------------------------------------------------------------------------------------------- memory

void allocate(Device device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  const OnDevice on(device);
  memory->struct_size = TF_GCU_SIZE(SP_DeviceMemoryBase, payload);
  memory->opaque = nullptr;
  memory->size = vendor().topsMalloc(&memory->opaque, size) == topsSuccess ? size : 0;
}

void deallocate(Device device, SP_DeviceMemoryBase* memory) {
  const OnDevice on(device);
  vendor().topsFree(memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

void* host_memory_allocate(Device device, uint64_t size) {
  const OnDevice on(device);
  void* memory = nullptr;
  return vendor().topsHostMalloc(&memory, size, topsHostMallocDefault) == topsSuccess ? memory : nullptr;
}

void host_memory_deallocate(Device device, void* memory) {
  const OnDevice on(device);
  vendor().topsHostFree(memory);
}

TF_Bool get_allocator_stats(Device, SP_AllocatorStats*) { return 0; }

TF_Bool device_memory_usage(Device device, int64_t* free, int64_t* total) {
  const OnDevice on(device);
  size_t free_bytes = 0, total_bytes = 0;
  if (vendor().topsMemGetInfo(&free_bytes, &total_bytes) != topsSuccess) return 0;
  *free = static_cast<int64_t>(free_bytes);
  *total = static_cast<int64_t>(total_bytes);
  return 1;
}

// ------------------------------------------------------------------------------------------------ streams and events

void create_stream(Device device, SP_Stream* stream, TF_Status* status) {
  const OnDevice on(device);
  topsStream_t made = nullptr;
  report(vendor().topsStreamCreateWithFlags(&made, topsStreamNonBlocking), "topsStreamCreateWithFlags", status);
  *stream = reinterpret_cast<SP_Stream>(made);
}

void destroy_stream(Device device, SP_Stream stream) {
  const OnDevice on(device);
  vendor().topsStreamDestroy(native(stream));
}

void get_stream_status(Device device, SP_Stream stream, TF_Status* status) {
  const OnDevice on(device);
  const topsError_t code = vendor().topsStreamQuery(native(stream));
  if (code != topsErrorNotReady) report(code, "work on a stream", status);
}

bool make_event(unsigned flags, topsEvent_t* event, TF_Status* status) {
  return report(vendor().topsEventCreateWithFlags(event, flags), "topsEventCreateWithFlags", status);
}

void create_event(Device device, SP_Event* event, TF_Status* status) {
  const OnDevice on(device);
  topsEvent_t made = nullptr;
  make_event(topsEventDisableTiming, &made, status);
  *event = reinterpret_cast<SP_Event>(made);
}

void destroy_event(Device device, SP_Event event) {
  const OnDevice on(device);
  vendor().topsEventDestroy(native(event));
}

SE_EventStatus get_event_status(Device device, SP_Event event) {
  const OnDevice on(device);
  switch (vendor().topsEventQuery(native(event))) {
    case topsSuccess:
      return SE_EVENT_COMPLETE;
    case topsErrorNotReady:
      return SE_EVENT_PENDING;
    default:
      return SE_EVENT_ERROR;
  }
}

void record_event(Device device, SP_Stream stream, SP_Event event, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsEventRecord(native(event), native(stream)), "topsEventRecord", status);
}

void wait_for_event(Device device, SP_Stream stream, SP_Event event, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsStreamWaitEvent(native(stream), native(event), 0), "topsStreamWaitEvent", status);
}

void create_stream_dependency(Device device, SP_Stream dependent, SP_Stream other, TF_Status* status) {
  const OnDevice on(device);
  topsEvent_t event = nullptr;
  if (!make_event(topsEventDisableTiming, &event, status)) return;
  if (report(vendor().topsEventRecord(event, native(other)), "topsEventRecord", status)) {
    report(vendor().topsStreamWaitEvent(native(dependent), event, 0), "topsStreamWaitEvent", status);
  }
  vendor().topsEventDestroy(event);
}

void block_host_for_event(Device device, SP_Event event, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsEventSynchronize(native(event)), "topsEventSynchronize", status);
}

void block_host_until_done(Device device, SP_Stream stream, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsStreamSynchronize(native(stream)), "work on a stream", status);
}

void synchronize_all_activity(Device device, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsDeviceSynchronize(), "topsDeviceSynchronize", status);
}

struct Timer {
  topsEvent_t start = nullptr, stop = nullptr;
};

Timer* timer_of(SP_Timer timer) { return reinterpret_cast<Timer*>(timer); }

void create_timer(Device device, SP_Timer* timer, TF_Status* status) {
  const OnDevice on(device);
  auto* made = new Timer;
  *timer = reinterpret_cast<SP_Timer>(made);
  if (make_event(topsEventDefault, &made->start, status)) make_event(topsEventDefault, &made->stop, status);
}

void destroy_timer(Device device, SP_Timer timer) {
  const OnDevice on(device);
  const std::unique_ptr<Timer> made(timer_of(timer));
  if (made->start != nullptr) vendor().topsEventDestroy(made->start);
  if (made->stop != nullptr) vendor().topsEventDestroy(made->stop);
}

void start_timer(Device device, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsEventRecord(timer_of(timer)->start, native(stream)), "topsEventRecord", status);
}

void stop_timer(Device device, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsEventRecord(timer_of(timer)->stop, native(stream)), "topsEventRecord", status);
}

// ----------------------------------------------------------------------------------------------------------- copies

void copy(Device device, SP_Stream stream, void* to, const void* from, uint64_t size, topsMemcpyKind kind,
          TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsMemcpyAsync(to, from, size, kind, native(stream)), "topsMemcpyAsync", status);
}

void copy_now(Device device, void* to, const void* from, uint64_t size, topsMemcpyKind kind, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsMemcpy(to, from, size, kind), "topsMemcpy", status);
}

void fill(Device device, SP_Stream stream, void* memory, int byte, uint64_t size, TF_Status* status) {
  const OnDevice on(device);
  report(vendor().topsMemsetAsync(memory, byte, size, native(stream)), "topsMemsetAsync", status);
}

struct Fill32 {
  void* memory;
  uint32_t pattern;
  uint64_t size;
};

void fill32(void* argument) {
  const std::unique_ptr<Fill32> what(static_cast<Fill32*>(argument));
  auto* words = static_cast<uint32_t*>(vendor().topsSimAddress(what->memory, what->size));
  for (uint64_t i = 0; words != nullptr && i < what->size / sizeof(uint32_t); ++i) words[i] = what->pattern;
}

void memset32(Device device, SP_Stream stream, SP_DeviceMemoryBase* memory, uint32_t pattern, uint64_t size,
              TF_Status* status) {
  const OnDevice on(device);
  auto what = std::make_unique<Fill32>(Fill32{memory->opaque, pattern, size});
  if (report(vendor().topsSimLaunch(native(stream), &fill32, what.get()), "topsSimLaunch", status)) what.release();
}

struct HostCall {
  SE_StatusCallbackFn function;
  void* argument;
};

void call_host(void* argument) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(argument));
  Status status;
  call->function(call->argument, status);
}

TF_Bool host_callback(Device device, SP_Stream stream, SE_StatusCallbackFn function, void* argument) {
  const OnDevice on(device);
  auto call = std::make_unique<HostCall>(HostCall{function, argument});
  if (vendor().topsLaunchHostFunc(native(stream), &call_host, call.get()) != topsSuccess) return 0;
  call.release();
  return 1;
}

}  // namespace

uint64_t timer_nanoseconds(SP_Timer timer) {
  float milliseconds = 0;
  const Timer& made = *timer_of(timer);
  vendor().topsEventSynchronize(made.stop);
  if (vendor().topsEventElapsedTime(&milliseconds, made.start, made.stop) != topsSuccess) return 0;
  return static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
}

void fill_executor(SP_StreamExecutor* e) {
  e->struct_size = TF_GCU_SIZE(SP_StreamExecutor, host_callback);
  e->allocate = &allocate;
  e->deallocate = &deallocate;
  e->host_memory_allocate = &host_memory_allocate;
  e->host_memory_deallocate = &host_memory_deallocate;
  e->get_allocator_stats = &get_allocator_stats;
  e->device_memory_usage = &device_memory_usage;
  e->create_stream = &create_stream;
  e->destroy_stream = &destroy_stream;
  e->create_stream_dependency = &create_stream_dependency;
  e->get_stream_status = &get_stream_status;
  e->create_event = &create_event;
  e->destroy_event = &destroy_event;
  e->get_event_status = &get_event_status;
  e->record_event = &record_event;
  e->wait_for_event = &wait_for_event;
  e->create_timer = &create_timer;
  e->destroy_timer = &destroy_timer;
  e->start_timer = &start_timer;
  e->stop_timer = &stop_timer;
  e->memcpy_dtoh = [](Device d, SP_Stream s, void* to, const SP_DeviceMemoryBase* from, uint64_t n, TF_Status* status) {
    copy(d, s, to, from->opaque, n, topsMemcpyDeviceToHost, status);
  };
  e->memcpy_htod = [](Device d, SP_Stream s, SP_DeviceMemoryBase* to, const void* from, uint64_t n, TF_Status* status) {
    copy(d, s, to->opaque, from, n, topsMemcpyHostToDevice, status);
  };
  e->memcpy_dtod = [](Device d, SP_Stream s, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t n,
                      TF_Status* status) { copy(d, s, to->opaque, from->opaque, n, topsMemcpyDeviceToDevice, status); };
  e->sync_memcpy_dtoh = [](Device d, void* to, const SP_DeviceMemoryBase* from, uint64_t n, TF_Status* status) {
    copy_now(d, to, from->opaque, n, topsMemcpyDeviceToHost, status);
  };
  e->sync_memcpy_htod = [](Device d, SP_DeviceMemoryBase* to, const void* from, uint64_t n, TF_Status* status) {
    copy_now(d, to->opaque, from, n, topsMemcpyHostToDevice, status);
  };
  e->sync_memcpy_dtod = [](Device d, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t n,
                           TF_Status* status) {
    copy_now(d, to->opaque, from->opaque, n, topsMemcpyDeviceToDevice, status);
  };
  e->block_host_for_event = &block_host_for_event;
  e->block_host_until_done = &block_host_until_done;
  e->synchronize_all_activity = &synchronize_all_activity;
  e->mem_zero = [](Device d, SP_Stream s, SP_DeviceMemoryBase* memory, uint64_t n, TF_Status* status) {
    fill(d, s, memory->opaque, 0, n, status);
  };
  e->memset = [](Device d, SP_Stream s, SP_DeviceMemoryBase* memory, uint8_t byte, uint64_t n, TF_Status* status) {
    fill(d, s, memory->opaque, byte, n, status);
  };
  e->memset32 = &memset32;
  e->host_callback = &host_callback;
}

}  // namespace tf_gcu
