// Devices, streams, events and memory of the TOPS runtime, with the methods that hvd::Device looks for. Any thread.
// Every method runs with this device current on the calling thread.
#pragma once

#include <hvd/backend.hpp>

#include "eccl_api.h"

// Makes a device current on this thread. Its destructor restores the previous device, since the thread may be the
// user's.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  int before_ = 0, ordinal_;
};

class GcuDevice : public hvd::Device<GcuDevice> {
 public:
  static constexpr const char* device_type = "gcu";
  using Stream = topsStream_t;
  using Event = topsEvent_t;

  static int32_t count();
  explicit GcuDevice(const hvd::DeviceInit& init);
  CurrentDevice make_current() const { return CurrentDevice(ordinal()); }
  hvd_device_props props();

  Stream stream_create(int32_t priority);
  void stream_destroy(Stream stream);
  bool stream_query(Stream stream);
  bool stream_sync(Stream stream, int64_t deadline_ns);
  void stream_wait_event(Stream stream, Event event);

  Event event_create(int32_t flags);
  void event_destroy(Event event);
  void event_record(Event event, Stream stream);
  bool event_query(Event event);
  bool event_wait(Event event, int64_t deadline_ns);
  int64_t event_elapsed_ns(Event from, Event to);

  void* mem_alloc(int32_t kind, uint64_t bytes);
  void mem_free(void* base, int32_t kind);
  static hvd::MemInfo mem_query(const void* p);
  void copy(Stream stream, hvd_buf dst, hvd_buf src, uint64_t bytes);

  // The pointer that the runtime takes for `bytes` bytes that begin `skip` bytes into a buffer. Every address is
  // computed here, because a device pointer may be a handle, to which an offset cannot be added.
  static void* address(const hvd_buf& buf, uint64_t bytes, uint64_t skip = 0);

 private:
  static bool handles();
};
