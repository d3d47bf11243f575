// One opened device of a backend's device table: its memory, its streams, and marks in them.
//
// Device memory may be a handle: only (base, offset) is ever passed on. Calls come from any thread; they take turns on
// a mutex that is held for the time of one call into the table, which never waits for the device. Waiting
// (Mark::wait, drain) holds nothing. Memory, marks and wrapped streams are pooled; all of them keep the device open.
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

#include "engine/plugin/backend.h"

namespace hvd::plugin {

class Device;

// A place in a stream: what had been given to it when the mark was made.
class Mark {
 public:
  Mark(std::shared_ptr<Device> device, hvd_event event) : device_(std::move(device)), event_(event) {}
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  // Whether the stream has come that far; never sleeps. Throws BackendError when the device has failed, like wait().
  bool reached();
  // Asleep until then (true) or until the deadline (false).
  bool wait(int64_t deadline_ns);
  hvd_event event() const { return event_; }
  Device& device() const { return *device_; }

 private:
  const std::shared_ptr<Device> device_;
  const hvd_event event_;
  std::atomic<bool> reached_{false};
};
using MarkRef = std::shared_ptr<Mark>;

// A block of pooled memory. Whoever lets go of it has seen to it that nothing uses it any more.
class Memory {
 public:
  Memory(std::shared_ptr<Device> device, int32_t kind, hvd_mem mem, hvd_buf all)
      : device_(std::move(device)), kind_(kind), mem_(mem), all_(all) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // The first `bytes` of it behind the alignment that was asked for.
  hvd_buf buf = {};

  // Something in this stream uses it: it is not given to anybody else before the stream has come so far.
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

  // Opens the backend's device number `ordinal`. Throws BackendError; UNSUPPORTED without streams, events and memory
  // in the table.
  static std::shared_ptr<Device> open(std::shared_ptr<Backend> backend, int32_t ordinal);
  // How many the backend sees; 0 where it cannot tell, which opening one explains.
  static int32_t count(const Backend& backend) noexcept;
  // The number of the device whose memory `data` is; -1 where the backend cannot tell.
  static int32_t owner(const Backend& backend, const void* data) noexcept;
  // Waits a moment for what is under way, then closes; what a device that goes on might still use is kept.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Backend& backend() const { return *backend_; }
  OpenDevice opened() const { return {device_, api_}; }
  int32_t ordinal() const { return ordinal_; }
  // Addresses in its memory mean something to its own table only.
  bool handles() const { return handles_; }
  // The engine's own stream; everything that the engine does on the device is ordered by it.
  hvd_stream stream() const { return stream_; }

  // Whether a caller's streams can be used at all, and whether one stream can wait for another's mark by itself.
  bool wraps_streams() const;
  bool orders_streams() const;
  // A stream of the caller's; the same object for the same native one.
  hvd_stream wrap(void* native);

  // Notes the present end of the stream.
  MarkRef mark(hvd_stream stream);
  // What is given to the stream from now on starts when the mark is reached. Only with orders_streams().
  void order_after(hvd_stream stream, const Mark& mark);

  // In this order, after what the stream has been given before.
  void copy(hvd_stream stream, const std::vector<Copy>& list);
  // For lists with memory of the host's that is not PINNED: what makes one launch of a list does not reach that.
  void copy_each(hvd_stream stream, const std::vector<Copy>& list);
  // Whether copies of this type can be scaled on their way; tried out the first time.
  bool scales(int32_t dtype);
  // The same with elements multiplied on their way. Only with scales(), or factors of 1.
  void copy_scaled(hvd_stream stream, const std::vector<ScaledCopy>& list);

  // HVD_MEM_DEVICE or HVD_MEM_PINNED, uninitialised. Never a null base, also for 0 bytes.
  MemoryRef allocate(int32_t kind, uint64_t bytes, uint64_t alignment = kAlignment);

  // Until the stream has nothing left to do (true), or the deadline (false). Throws when the device has failed.
  bool drain(hvd_stream stream, int64_t deadline_ns);

  // In a forked child: the device is the parent's, nothing of it is touched any more.
  void abandon() noexcept { abandoned_.store(true); }
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_relaxed); }

 private:
  friend class Mark;
  friend class Memory;
  struct Block {
    int32_t kind;
    hvd_mem mem;
    hvd_buf all;
    uint64_t since = 0;  // the lower, the longer it lies in the pool
  };
  struct Kept {
    std::vector<hvd_event> uses;
    Block block;
  };

  explicit Device(std::shared_ptr<Backend> backend) : backend_(std::move(backend)), api_(backend_->device_api()) {}
  void begin(int32_t ordinal);
  [[noreturn]] void fail(const char* what, hvd_rc rc, const hvd_error& error) const;
  void batched(hvd_stream stream, const std::vector<hvd_copy_item>& items);
  // All of these under mutex_.
  hvd_event record(hvd_stream stream);
  bool is_over(hvd_event event) noexcept;
  void give_back(Block block) noexcept;
  void free_oldest() noexcept;
  void sweep() noexcept;
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

  std::mutex mutex_;  // around each call into the table, and what follows
  std::map<void*, hvd_stream> wrapped_;
  std::vector<hvd_event> events_;   // to be used again
  std::deque<hvd_event> doubtful_;  // marks that were let go of before anybody saw them reached
  std::vector<Kept> kept_;          // memory that was let go of and is still used by a stream
  std::multimap<std::pair<int32_t, uint64_t>, Block> free_;  // by kind and size
  uint64_t free_bytes_ = 0, pool_bytes_ = 0, given_back_ = 0;
  std::map<int32_t, bool> scales_;
};

}  // namespace hvd::plugin
