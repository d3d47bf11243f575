// A request: one submitted operation with its tensors, from submission to completion, and the way to wait for it.
//
// Made by the submitting thread, completed by the thread that drives the engine, waited for by any thread. A grouped
// operation is one request with several tensors. On host memory a request is pending, then done; on a device it may be
// enqueued in between: a stream of the device has all its work, and `finished` marks the end of that.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/failure.h"
#include "engine/control/messages.h"
#include "engine/plugin/device.h"
#include "engine/types/dtypes.h"

namespace hvd::queue {

// A dense tensor that the framework owns and keeps alive until the request is done, and for good if it lingers then.
struct Tensor {
  void* data = nullptr;
  int32_t dtype = 0;  // HVD_*
  std::vector<int64_t> shape;
  std::string device_type = "cpu";
  int32_t device_id = 0;  // negative: that whose memory `data` is
  // On a device: the native stream whose work so far has to be done before the data are read. Without one they are.
  bool has_stream = false;
  void* stream = nullptr;

  bool on_host() const { return device_type == "cpu"; }
  uint64_t count() const {
    uint64_t n = 1;
    for (int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
  uint64_t bytes() const { return count() * types::dtype_bytes(dtype); }
};

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

// Aligned to 64 bytes and never null, also for 0 bytes. Throws std::bad_alloc.
inline std::unique_ptr<void, FreeDeleter> allocate(uint64_t bytes) {
  // Multiples of the alignment, as aligned_alloc wants.
  std::unique_ptr<void, FreeDeleter> memory(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
  if (!memory) throw std::bad_alloc();
  return memory;
}

// A result whose size only the engine knows.
struct Output {
  std::unique_ptr<void, FreeDeleter> data;
  int32_t dtype = 0;
  std::vector<int64_t> shape;
  std::string device_type = "cpu";
  plugin::MemoryRef device_memory;  // on a device, in place of `data`
};

class Request;

// Somebody who wants to hear that a request is settled, instead of waiting for it.
class Listener {
 public:
  // The thread that drives the engine calls this at a change of state: settled, and done if that comes later. Must be
  // quick. True: it has heard enough, and may be gone already.
  virtual bool settled(const Request& request) noexcept = 0;

  std::shared_ptr<Request> request;  // set when it is submitted, so that the listener can keep it

 protected:
  ~Listener() = default;
};

class Request {
 public:
  uint64_t handle = 0;
  control::SetId set = 0;
  control::Item item;
  std::vector<Tensor> in, out;  // out is empty where the engine allocates
  // Alltoall: rows of in[i] for each rank of the set; may leave rows at the end.
  std::vector<std::vector<int64_t>> splits;
  bool urgent = false;                 // submitted by a caller who waits for it at once
  std::vector<plugin::MarkRef> ready;  // on a device: where its streams have the data
  Listener* listener = nullptr;        // set before it is submitted, then the finishing thread's

  // Valid once failed(): a backend that did not let go of the tensors after an abort may still read and write them.
  bool lingers = false;
  // Valid once settled().
  plugin::MarkRef finished;  // of a request that was enqueued
  std::vector<Output> outputs;
  std::vector<std::vector<int64_t>> received_splits;  // alltoall: rows of outputs[i] from each rank
  int32_t process_set = -1;                           // of a new process set: its number for the user
  int32_t last_joined = -1;

  // Names in flight are unique within a process set.
  std::string key() const { return std::to_string(set) + ":" + *item.name; }

  // Nothing touches its tensors any more.
  bool done() const { return ended(state()); }
  // Done, or all its work is in a device's stream: the caller can go on, in the order of that.
  bool settled() const { return state() != kPending; }
  bool enqueued() const { return state() == kEnqueued; }
  bool failed() const { return state() == kFailed; }
  bool ok() const { return state() == kOk || state() == kEnqueued; }  // so far
  const std::string& error() const { return error_; }                 // when failed
  control::Failure failure() const { return failure_; }               // likewise

  void enqueue(plugin::MarkRef end) {
    finished = std::move(end);
    finish(kEnqueued);
  }
  void complete() { finish(kOk); }
  void fail(control::Failure failure, std::string text) {
    error_ = std::move(text);
    failure_ = failure;
    finish(kFailed);
  }
  // Sleeps until settled or about `timeout_ns` later; may return early.
  void sleep(int64_t timeout_ns);

 private:
  static constexpr uint32_t kPending = 0, kOk = 1, kFailed = 2, kEnqueued = 3;
  static bool ended(uint32_t state) { return state == kOk || state == kFailed; }
  uint32_t state() const { return state_.load(std::memory_order_acquire); }
  void finish(uint32_t state);  // the caller holds a reference

  std::atomic<uint32_t> state_{kPending}, sleepers_{0};
  std::string error_;
  control::Failure failure_ = control::Failure::JobOver;
};

using RequestRef = std::shared_ptr<Request>;

}  // namespace hvd::queue
