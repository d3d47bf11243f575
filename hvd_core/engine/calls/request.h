// A request, from submission to completion; the results that the engine allocates; and what the engine throws at its
// callers, of which the binding makes Python exceptions (python/module.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/messages.h"
#include "engine/base/dtypes.h"
#include "engine/base/failure.h"
#include "engine/base/text.h"
#include "engine/calls/call.h"
#include "engine/plugins/device.h"
#include "engine/plugins/window.h"
#include "engine/recorder/event.h"

namespace hvd::calls {

inline constexpr const char* kForkedText =
    "this process is a fork of one that runs the engine, which belongs to the parent: collectives cannot be used here. "
    "Call hvd.init() only in processes that the launcher started, or use the 'spawn' start method.";

inline constexpr const char* kDuplicateText =
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed.  If you want to request another tensor, use a different tensor name.";

// A mistake in the call's arguments (a duplicate name, for example), before there is a request: ValueError in Python.
struct InvalidRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A request that has failed, or a call that the engine refuses because the job has ended: a subclass of
// HorovodInternalError in Python, chosen by `failure`.
struct RequestFailed : std::runtime_error {
  RequestFailed(base::Failure kind, const std::string& text) : std::runtime_error(text), failure(kind) {}
  base::Failure failure;
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

// A result that the engine allocated, because only the engine knows its size, or where the ranks share memory.
struct Output {
  std::unique_ptr<void, FreeDeleter> data;
  plugins::WindowRef window;  // in place of `data`
  std::string no_window;      // create_window: why the memory is this rank's alone, and not in a window
  int32_t dtype = 0;
  std::vector<int64_t> shape;
  std::string device_type = "cpu";
  plugins::MemoryRef device_memory;  // on a device, in place of `data`

  // In host memory; null if the result was taken.
  void* memory() const { return window ? window->data() : data.get(); }
};

// A request: one submitted operation with its tensors, from submission to completion, and the way to wait for it.
//
// Made by the submitting thread, completed by the thread that drives the engine, waited for by any thread. A grouped
// operation is one request with several tensors. On host memory a request is pending, then done; on a device it may be
// enqueued in between: a stream of the device has all its work, and `finished` marks the end of that.
class Request {
 public:
  explicit Request(Call&& call = {}) : call(std::move(call)) {}

  uint64_t handle = 0;
  // A message whose pair of ranks has no set yet gets the set later, by the thread that drives (core/inbox.cc).
  std::atomic<agreement::SetId> set{0};
  agreement::Item item;
  // As it was asked for; its name is in `item`.
  Call call;
  std::atomic<bool> urgent{false};  // the caller waits for it at once
  int64_t submitted_ns = 0;
  recorder::RequestName observed;        // its name in events; 0 if nothing observed its submission
  std::atomic<int64_t> waited_since{0};  // a caller began to wait then

  // Valid once failed(): a backend did not stop in time after an abort, and may still read and write the tensors.
  bool lingers = false;
  // Valid once settled().
  plugins::MarkRef finished;  // the end of its work, if it was enqueued
  std::vector<Output> outputs;
  std::vector<std::vector<int64_t>> received_splits;  // alltoall: rows of outputs[i] from each rank
  int32_t process_set = -1;                           // add_process_set: the number that users see
  int32_t last_joined = -1;

  // Names in flight are unique within a process set.
  std::string key() const { return std::to_string(set) + ":" + *item.name; }

  // The engine does not touch its tensors any more.
  bool done() const { return ended(state()); }
  // Done, or all its work is in a device's stream, so that the caller can go on in the order of that stream.
  bool settled() const { return state() != kPending; }
  bool enqueued() const { return state() == kEnqueued; }
  bool failed() const { return state() == kFailed; }
  // So far. Read once: an enqueued request may be completed between two reads.
  bool ok() const { return succeeds(state()); }
  const std::string& error() const { return error_; }  // when failed
  base::Failure failure() const { return failure_; }   // when failed
  // Throws RequestFailed if it has failed.
  void throw_if_failed() const {
    if (failed()) throw RequestFailed(failure_, error_);
  }

  void enqueue(plugins::MarkRef end) {
    finished = std::move(end);
    finish(kEnqueued);
  }
  void complete() { finish(kOk); }
  // `text` may come from another rank: it is made safe to show.
  void fail(base::Failure failure, std::string text) {
    error_ = base::printable(std::move(text));
    failure_ = failure;
    finish(kFailed);
  }
  // Sleeps until settled or about `timeout_ns` later; may return early.
  void sleep(int64_t timeout_ns);

 private:
  static constexpr uint32_t kPending = 0, kOk = 1, kFailed = 2, kEnqueued = 3;
  static bool ended(uint32_t state) { return state == kOk || state == kFailed; }
  static bool succeeds(uint32_t state) { return state == kOk || state == kEnqueued; }
  uint32_t state() const { return state_.load(std::memory_order_acquire); }
  void finish(uint32_t state);  // the caller holds a reference

  std::atomic<uint32_t> state_{kPending}, sleepers_{0};
  std::string error_;
  base::Failure failure_ = base::Failure::JobEnded;
};

using RequestRef = std::shared_ptr<Request>;

}  // namespace hvd::calls
