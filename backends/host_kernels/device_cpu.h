// The host device "cpu", which every backend for host memory has: ordinary memory, and streams and events that are
// always complete, because every call has done its work when it returns. Any thread.
#pragma once

#include "hvd/backend.hpp"

namespace hvd::host_kernels {

// The device class for HVD_BACKEND.
class CpuDevice : public Device<CpuDevice> {
 public:
  static constexpr const char* device_type = "cpu";
  using Stream = void*;    // the program's, if it is wrapped
  using Event = int64_t*;  // when it was recorded

  static int32_t count() { return 1; }
  explicit CpuDevice(const DeviceInit& init) : Device(init) {}
  hvd_device_props props();

  Stream stream_create(int32_t) { return nullptr; }
  void stream_destroy(Stream) {}
  bool stream_query(Stream) { return true; }
  bool stream_sync(Stream, int64_t) { return true; }
  void stream_wait_event(Stream, Event) {}

  Event event_create(int32_t) { return new int64_t(0); }
  void event_destroy(Event event) { delete event; }
  void event_record(Event event, Stream) { *event = now_ns(); }
  bool event_query(Event) { return true; }
  bool event_wait(Event, int64_t) { return true; }
  int64_t event_elapsed_ns(Event from, Event to) { return *to - *from; }

  void* mem_alloc(int32_t kind, uint64_t bytes);
  void mem_free(void* base, int32_t kind);
  static MemInfo mem_query(const void*);
  void copy(Stream, hvd_buf dst, hvd_buf src, uint64_t bytes);
  void batched_copy_scale(Stream, const CopyItems& items);
  void reduce_local(Stream, hvd_buf inout, hvd_buf in, uint64_t n, int32_t dtype, int32_t op);
};

}  // namespace hvd::host_kernels
