// Devices, streams, events and memory of CUDA, over the driver's interface, with the methods that hvd::Device looks
// for. Any thread; every method runs with the device's context current on the calling thread (CudaScope).
#pragma once

#include <hvd/backend.hpp>
#include <memory>

#include "cuda_api.h"

class CudaKernels;

// As long as a CudaScope lives, the calling thread has this context current, and may make calls that CUDA otherwise
// forbids while a thread of the process captures a stream into a graph; calls of this backend never go into a user's
// graph. The destructor restores the thread's previous state, since the thread may be the user's.
class CudaScope {
 public:
  explicit CudaScope(CUcontext context);
  ~CudaScope();
  CudaScope(const CudaScope&) = delete;

 private:
  bool pushed_ = false;
  int mode_before_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

class CudaDevice : public hvd::Device<CudaDevice> {
 public:
  static constexpr const char* device_type = "cuda";
  using Stream = CUstream;  // NULL is the legacy default stream, 2 the calling thread's default stream
  using Event = CUevent;

  // Devices that this process sees; 0 if CUDA works and there is no device. Throws HVD_E_UNAVAILABLE without CUDA.
  static int32_t count();
  // Uses the device's primary context, as frameworks do, or the context in `init`.
  explicit CudaDevice(const hvd::DeviceInit& init);
  ~CudaDevice();
  CudaScope make_current() const { return CudaScope(context_); }
  hvd_device_props props();

  // priority: streams below 0 go before others, if the device has priorities.
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
  // Without kernels for this device: plain copies go one by one, and all others fail with HVD_E_UNSUPPORTED.
  void batched_copy_scale(Stream stream, const hvd::CopyItems& items);
  void reduce_local(Stream stream, hvd_buf inout, hvd_buf in, uint64_t count, int32_t dtype, int32_t op);

  CUcontext context() const { return context_; }
  CUdevice device() const { return device_; }

 private:
  int attribute(int which) const;

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  bool retained_ = false;
  std::unique_ptr<CudaKernels> kernels_;
};
