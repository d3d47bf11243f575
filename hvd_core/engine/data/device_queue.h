// Copies between a device's memory and pinned host memory, through a backend's device table: a stream, marks in it that
// can be waited for, and one area of pinned memory.
//
// Device memory may be a handle: only (base, offset) is ever passed on. Used by the thread that drives the engine.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/plugin/backend.h"

namespace hvd::data {

class DeviceQueue {
 public:
  struct Copy {
    hvd_buf dst, src;
    uint64_t bytes = 0;
  };
  static constexpr size_t kMarks = 2;

  // `device` is open and outlives this object. Throws plugin::BackendError (UNSUPPORTED without streams, events and
  // memory in the table).
  DeviceQueue(std::shared_ptr<plugin::Backend> backend, hvd_device device);
  // Waits a moment for copies that are still under way; memory that they might touch is leaked rather than freed.
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // In this order, after what the stream has been given before. A null `stream` is this object's own.
  void copy(hvd_stream stream, const std::vector<Copy>& list);
  // Notes the present end of the stream.
  void mark(hvd_stream stream, size_t which);
  // Whether the stream has come that far; true for a mark never made.
  bool reached(size_t which);
  // Asleep until then, or until the deadline. Throws like all others when the device fails.
  void wait(size_t which, int64_t deadline_ns);
  // Until the stream has nothing left to do, or the deadline.
  void drain(hvd_stream stream, int64_t deadline_ns);
  // Pinned memory, aligned to 64 bytes; it may move when more is asked for than before.
  hvd_buf pinned(uint64_t bytes);

 private:
  hvd_stream or_own(hvd_stream stream) const { return stream ? stream : stream_; }
  [[noreturn]] void fail(const char* what, hvd_rc rc, const hvd_error& error) const;
  void free_pinned();

  std::shared_ptr<plugin::Backend> backend_;
  const hvd_device_api* api_;
  hvd_device device_;
  hvd_stream stream_ = nullptr;
  std::array<hvd_event, kMarks> events_{};
  uint64_t batch_limit_ = 1;
  hvd_mem memory_ = nullptr;
  hvd_buf area_{};
};

}  // namespace hvd::data
