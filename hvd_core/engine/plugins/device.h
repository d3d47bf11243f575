// One open device of a backend's device table: its memory, its streams, and marks in them.
//
// The base of a buffer may be a handle: only (base, offset) is passed on, never a sum. Any thread may call. A mutex is
// held for each call into the table, which never waits for the device. Mark::wait and drain hold no mutex while they
// wait. Memory, marks and wrapped streams are pooled; all of them keep the device open.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/plugins/backend.h"
#include "engine/plugins/backend_call.h"

namespace hvd::plugins {

class Device;

// A recorded event: the point in a stream that all work enqueued before the mark precedes.
class Mark {
 public:
  Mark(std::shared_ptr<Device> device, hvd_event event) : device_(std::move(device)), event_(event) {}
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  // Whether the stream has reached the mark; never sleeps. Throws BackendError if the device has failed, like wait().
  bool reached();
  // Sleeps until the stream has reached the mark (true), or until the deadline (false).
  bool wait(int64_t deadline_ns);
  hvd_event event() const { return event_; }
  Device& device() const { return *device_; }

 private:
  const std::shared_ptr<Device> device_;
  const hvd_event event_;
  std::atomic<bool> reached_{false};
};
using MarkRef = std::shared_ptr<Mark>;

// A block of pooled memory. It returns to the pool when the last reference goes, so nothing may use it then, except
// streams that used_by() has named.
class Memory {
 public:
  Memory(std::shared_ptr<Device> device, int32_t kind, hvd_mem mem, hvd_buf all)
      : device_(std::move(device)), kind_(kind), mem_(mem), all_(all) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // The allocated bytes, at the alignment that allocate() was asked for.
  hvd_buf buf = {};

  // Work in this stream uses the memory: it is not allocated again before the stream has completed that work.
  void used_by(hvd_stream stream);

 private:
  const std::shared_ptr<Device> device_;
  const int32_t kind_;
  const hvd_mem mem_;
  const hvd_buf all_;
  std::vector<hvd_event> uses_;
};
using MemoryRef = std::shared_ptr<Memory>;

class Device : public std::enable_shared_from_this<Device> {
 public:
  struct Copy {
    hvd_buf dst, src;
    uint64_t bytes = 0;
  };
  struct ScaledCopy {
    hvd_buf dst, src;
    uint64_t count = 0;  // elements
    int32_t dtype = 0;
    double scale = 1.0;
  };
  static constexpr uint64_t kAlignment = 64;

  // Opens the backend's device `ordinal`. Throws BackendError; UNSUPPORTED if the table has no streams, events or
  // memory.
  static std::shared_ptr<Device> open(std::shared_ptr<Backend> backend, int32_t ordinal);
  // How many devices the backend sees; 0 if it cannot tell (open() then throws the reason).
  static int32_t count(const Backend& backend) noexcept;
  // The ordinal of the device that `data` is on; -1 if the backend cannot tell.
  static int32_t owner(const Backend& backend, const void* data) noexcept;
  // Waits a moment for outstanding work, then closes the device. If the work does not end, its memory is kept.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Backend& backend() const { return *backend_; }
  OpenDevice opened() const { return {device_, api_}; }
  int32_t ordinal() const { return ordinal_; }
  // Whether addresses in its memory are handles that only its own table understands.
  bool handles() const { return handles_; }
  // The engine's own stream. It orders all work of the engine on the device.
  hvd_stream stream() const { return stream_; }

  // Whether callers' streams can be used, and whether a stream can wait for a mark in another stream.
  bool wraps_streams() const;
  bool orders_streams() const;
  // Wraps a caller's native stream; the same native stream returns the same object.
  hvd_stream wrap(void* native);

  // Records a mark at the present end of the stream.
  MarkRef mark(hvd_stream stream);
  // Later work on the stream starts when the mark is reached. Only if orders_streams().
  void order_after(hvd_stream stream, const Mark& mark);

  // Enqueues copies, in this order, after all earlier work on the stream.
  void copy(hvd_stream stream, const std::vector<Copy>& list);
  // For lists with host memory that is not PINNED, which the table's batched copy cannot reach.
  void copy_each(hvd_stream stream, const std::vector<Copy>& list);
  // Whether copies of this type can be multiplied by a factor. The first call tries it.
  bool scales(int32_t dtype);
  // Copies that multiply each element by a factor. Only if scales(), or with factors of 1.
  void copy_scaled(hvd_stream stream, const std::vector<ScaledCopy>& list);

  // Allocates HVD_MEM_DEVICE or HVD_MEM_PINNED memory, uninitialised. The base is never null, not even for 0 bytes.
  MemoryRef allocate(int32_t kind, uint64_t bytes, uint64_t alignment = kAlignment);

  // Waits until the stream has no work left (true), or until the deadline (false). Throws if the device has failed.
  bool drain(hvd_stream stream, int64_t deadline_ns);

  // Called in a forked child: the device belongs to the parent, so this object makes no further calls into the table.
  void abandon() noexcept { abandoned_.store(true); }
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_relaxed); }

 private:
  friend class Mark;
  friend class Memory;
  struct Block {
    int32_t kind;
    hvd_mem mem;
    hvd_buf all;
    uint64_t since = 0;  // lower: longer in the pool
  };
  struct Kept {
    std::vector<hvd_event> uses;
    Block block;
  };

  explicit Device(std::shared_ptr<Backend> backend) : backend_(std::move(backend)), api_(backend_->device_api()) {}
  void begin(int32_t ordinal);
  template <class F>
  hvd_rc ask(Call call, hvd_error* error, F&& table_call) const {
    return answer_of(call, backend_->name(), error, std::forward<F>(table_call));
  }
  [[noreturn]] void fail(const char* what, hvd_rc rc, const hvd_error& error) const;
  void batched(hvd_stream stream, const std::vector<hvd_copy_item>& items);
  // The caller holds mutex_.
  hvd_event record(hvd_stream stream);
  bool is_over(hvd_event event) noexcept;
  void recycle(hvd_event event) noexcept;    // its stream has reached it
  void set_aside(hvd_event event) noexcept;  // its stream may not have reached it
  void give_back(Block block) noexcept;
  void free_oldest() noexcept;
  void collect_unused() noexcept;
  bool in_use() noexcept;
  void free_blocks() noexcept;

  const std::shared_ptr<Backend> backend_;
  const hvd_device_api* const api_;
  hvd_device device_ = nullptr;
  hvd_stream stream_ = nullptr;
  int32_t ordinal_ = 0;
  uint64_t batch_limit_ = 1, alignment_ = kAlignment;
  bool handles_ = false;
  std::atomic<bool> abandoned_{false};

  std::mutex mutex_;  // held for each call into the table, and for the members below
  std::map<void*, hvd_stream> wrapped_;
  std::vector<hvd_event> events_;   // free for reuse
  std::deque<hvd_event> doubtful_;  // of marks that were destroyed before they were known to be reached
  std::vector<Kept> kept_;          // memory that was returned and that a stream still uses
  std::multimap<std::pair<int32_t, uint64_t>, Block> free_;  // by kind and size
  uint64_t free_bytes_ = 0, pool_bytes_ = 0, given_back_ = 0;
  std::map<int32_t, bool> scales_;
};

}  // namespace hvd::plugins
