// What the engine's threads do in backends at this moment, for the thread that watches them (engine/call_watch.h).
//
// One thread writes a record at a time, and any thread may read it. A call costs two stores, some loads, a fence and no
// look at the clock: the reader sees by the count whether it is still the same call. A thread whose call does not come
// back can be left behind: if the call returns later, the thread stays in end() for good.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/plugins/errors.h"

namespace hvd::plugins {

enum class Call : uint8_t {
  None,
  Load,
  Create,
  Collective,
  Group,
  Test,
  Wait,
  Free,
  Finalize,
  Destroy,
  Abort,
  Split,
  Window,
  Query
};

// The call as messages name it.
const char* name_of(Call call);

// A short text that one thread writes and others read: a reader may see a mixture of two texts, and nothing worse.
template <size_t kBytes>
class SharedText {
 public:
  void store(std::string_view text) {
    const size_t n = std::min(text.size(), kBytes);
    for (size_t i = 0; i * 8 < n; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i * 8, std::min<size_t>(8, n - i * 8));
      words_[i].store(word, std::memory_order_relaxed);
    }
    size_.store(static_cast<uint32_t>(n), std::memory_order_relaxed);
  }
  std::string load() const {
    std::string text;
    const size_t n = std::min<size_t>(size_.load(std::memory_order_relaxed), kBytes);
    for (size_t i = 0; i * 8 < n; ++i) {
      const uint64_t word = words_[i].load(std::memory_order_relaxed);
      text.append(reinterpret_cast<const char*>(&word), std::min<size_t>(8, n - i * 8));
    }
    return text;
  }

 private:
  static_assert(kBytes % 8 == 0);
  std::array<std::atomic<uint64_t>, kBytes / 8> words_{};
  std::atomic<uint32_t> size_{0};
};

// The part of a record that outlives the process, if the launcher has given memory for it.
// hvd_core/_runtime/crash_reports.py reads it, with the same layout.
struct LastCall {
  std::atomic<uint64_t> call{0}, operation{0}, bytes{0};
  std::atomic<int32_t> coll{0};
  uint32_t padding = 0;
  SharedText<48> backend;
};
static_assert(sizeof(LastCall) == 88 && std::atomic<uint64_t>::is_always_lock_free);

class CallRecord {
 public:
  void begin(Call call, const std::string& backend) noexcept {
    if (backend_.load(std::memory_order_relaxed) != &backend) {
      backend_.store(&backend, std::memory_order_release);  // its characters may be this thread's, and new
      last()->backend.store(backend);
    }
    auto& running = last()->call;
    const uint64_t word = running.load(std::memory_order_relaxed);
    running.store(((word >> 8) + 1) << 8 | static_cast<uint8_t>(call), std::memory_order_release);
  }
  void end() noexcept {
    auto& running = last()->call;
    running.store(running.load(std::memory_order_relaxed) & ~uint64_t{0xff}, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see abandon()
    if (fate_.load(std::memory_order_relaxed) != kNone) [[unlikely]]
      stay();
  }
  // A collective is in flight from begin_operation(), which returns its place, to end_operation() with this place. The
  // record names one of those in flight: the one that began last, or the one that is left.
  int begin_operation(int32_t coll, uint64_t bytes) noexcept {
    const int place = open_[0].in_flight ? 1 : 0;
    open_[place] = {true, coll, bytes};
    LastCall* const kept = last();
    kept->coll.store(coll, std::memory_order_relaxed);
    kept->bytes.store(bytes, std::memory_order_relaxed);
    auto& operation = kept->operation;
    operation.store(((operation.load(std::memory_order_relaxed) >> 1) + 1) << 1 | 1, std::memory_order_release);
    return place;
  }
  void end_operation(int place = 0) noexcept {
    open_[place].in_flight = false;
    LastCall* const kept = last();
    if (const Open& other = open_[1 - place]; other.in_flight) {
      kept->coll.store(other.coll, std::memory_order_relaxed);
      kept->bytes.store(other.bytes, std::memory_order_relaxed);
      return;
    }
    auto& operation = kept->operation;
    operation.store(operation.load(std::memory_order_relaxed) & ~uint64_t{1}, std::memory_order_release);
  }
  // Keeps that part there, before the first call. `memory` lives as long as this object, or until keep_here().
  void keep_in(LastCall* memory) noexcept { last_.store(memory, std::memory_order_release); }
  // Keeps it in this object again, with its values. A call may be under way.
  void keep_here() noexcept;

  // The call that runs: equal values at two looks mean that it is the same one.
  uint64_t call() const { return last()->call.load(std::memory_order_acquire); }
  static Call which(uint64_t call) { return static_cast<Call>(call & 0xff); }
  // The operation in flight, likewise; even: no operation is.
  uint64_t operation() const { return last()->operation.load(std::memory_order_acquire); }
  int32_t coll() const { return last()->coll.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return last()->bytes.load(std::memory_order_relaxed); }
  // Backends live as long as the process, and so do their names.
  const std::string* backend() const { return backend_.load(std::memory_order_acquire); }

  // Makes the thread that is in `call` stay there. Returns false if the call has returned.
  bool abandon(uint64_t call) noexcept;

  SharedText<64> first_tensor, ranks;
  std::atomic<uint32_t> tensors{0};
  std::atomic<int64_t> clock{0};  // about now; for deadlines that may be late by some milliseconds
  int64_t deadline_after = 0;     // of each operation; 0: none. Set before the first call

 private:
  enum Fate : uint32_t { kNone, kPending, kLeft };
  void stay() noexcept;

  LastCall* last() const { return last_.load(std::memory_order_relaxed); }

  struct Open {
    bool in_flight = false;
    int32_t coll = 0;
    uint64_t bytes = 0;
  };
  Open open_[2];  // at most one for each of two strands (engine/dataplane/schedule.h); for the writing thread alone
  LastCall own_;
  std::atomic<LastCall*> last_{&own_};
  std::atomic<const std::string*> backend_{nullptr};
  std::atomic<uint32_t> fate_{kNone};
};

// One call, from construction to destruction. A null record: not recorded.
class CallScope {
 public:
  CallScope(CallRecord* record, Call call, const std::string& backend) noexcept : record_(record) {
    if (record_) record_->begin(call, backend);
  }
  ~CallScope() {
    if (record_) record_->end();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  CallRecord* const record_;
};

// The records of one engine: of the thread that loads backends, the driver, the thread that makes communicators, and
// the thread that destroys them.
struct CallRecords {
  // Before the first call. Keeps the part that outlives the process in `memory`, room for kBytes, in the place of an
  // earlier engine's records.
  static constexpr size_t kBytes = 4 * sizeof(LastCall);
  static void keep_in(void* memory, const std::shared_ptr<CallRecords>& records);
  CallRecord loading, driving, creating, ending;

 private:
  std::array<CallRecord*, 4> all() { return {&loading, &driving, &creating, &ending}; }
};

// Calls into a backend that any thread may make at any time: those of its device table, query, async_error and the
// like. They are noted for the launcher, which says in which call a rank has ended (hvd_core/_runtime/crash_reports.py
// reads the memory, with the same layout). The calls of the engine's own threads, which are watched as well, have
// call_record.h.

// One call of one thread. While all slots are taken, further calls are not noted.
struct SideSlot {
  enum State : uint32_t { kFree, kTaken, kInside };
  std::atomic<uint32_t> state{kFree};
  uint32_t padding = 0;
  SharedText<32> call;
  SharedText<48> backend;
};
static_assert(sizeof(SideSlot) == 104 && std::atomic<uint32_t>::is_always_lock_free);

// A call, from construction to destruction. Costs a load where no launcher has given memory.
class SideCall {
 public:
  SideCall(const char* call, const std::string& backend) noexcept
      : slot_(slots_.load(std::memory_order_acquire) ? take(call, backend) : nullptr) {}
  ~SideCall() {
    if (slot_) slot_->state.store(SideSlot::kFree, std::memory_order_release);
  }
  SideCall(const SideCall&) = delete;
  SideCall& operator=(const SideCall&) = delete;

  static constexpr int kSlots = 16;
  // From now on calls are noted there: zeroed memory for kSlots slots, mapped for good, the same for all engines of the
  // process.
  static void keep_in(void* memory) noexcept;

 private:
  static SideSlot* take(const char* call, const std::string& backend) noexcept;
  static std::atomic<SideSlot*> slots_;
  SideSlot* const slot_;
};

// answer_of(error, call) for a call with this name into this backend's table, noted.
template <class F>
hvd_rc answer_of(const std::string& backend, const char* name, hvd_error* error, F&& call) {
  const SideCall noted(name, backend);
  return answer_of(error, std::forward<F>(call));
}

}  // namespace hvd::plugins
