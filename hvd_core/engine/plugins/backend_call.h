// The call into a backend that each thread makes now: what the thread gets back as it was, and the record for whoever
// asks why nothing proceeds. Every call of the engine into a backend's table is an answer_of().
//
//   who writes    the calling thread, into its own slot; the driver, which operation is in flight (DriverRecord)
//   who reads     hvd-watch, which decides what follows from a call that does not return (watch/call_watch.h); exit();
//                 `hvd doctor`; and the launcher after this process has ended, if it has given memory for the record
//                 (hvd_core/_runtime/crash_reports.py, with the same layout)
//   how           atomics, no locks. A call costs two stores, a fence and no look at the clock: a reader sees by the
//                 count whether it is still the same call. Texts may be a mixture of two, and nothing worse.
//
// A thread whose call does not return can be left behind: if the call returns later, the thread stays in the end of its
// scope until the process ends.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "engine/plugins/errors.h"
#include "hvd/backend_abi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd::plugins {

// Which function of a backend's table; a caller's operation is calls::Call. By its place in backend_slots.inc, which
// crash_reports.py reads too.
enum class Call : uint8_t {
  none,
  load,
#define HVD_SLOT(table, name, since, need) table##_##name,
#include "hvd/backend_slots.inc"
};

// "load", "collective": as messages name it.
const char* name_of(Call call);

// A short text that one thread writes and others read.
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

// The call of one thread. `call` is a count and a Call: equal words at two looks mean that it is the same call.
struct CallSlot {
  // kOfEarlierEngine: the call was left behind by an engine that has ended.
  enum State : uint32_t { kFree, kUsed, kAbandoning, kAbandoned, kOfEarlierEngine };
  std::atomic<uint64_t> call{0};
  SharedText<48> backend;
  std::atomic<uint32_t> state{kFree};

  static Call which(uint64_t call) { return static_cast<Call>(call & 0xff); }
  Call running() const { return which(call.load(std::memory_order_acquire)); }
  // " in the call collective of backend 'shm'", of the call of this word.
  std::string where(uint64_t word) const;
  // Makes the thread that is in the call of this word stay there. Returns false if the call has returned.
  bool abandon(uint64_t word) noexcept;
};

// The operation in flight: a count, and 1 while it is in flight.
struct OperationWord {
  std::atomic<uint64_t> operation{0}, bytes{0};
  std::atomic<int32_t> coll{0};
  SharedText<48> backend;
};

// All that outlives the process if the launcher has given memory.
struct CallMemory {
  OperationWord operation;
  // Of all threads that have called a backend and still run. Further threads are not seen here.
  std::array<CallSlot, 48> slots;

  // Of this process.
  static CallMemory& here() noexcept { return *here_.load(std::memory_order_acquire); }
  // From now on calls are recorded there: zeroed memory, mapped until the process ends, the same for all engines. By a
  // thread that is in no call; threads that have made calls before are seen by hvd-watch no more.
  static void keep_in(void* memory) noexcept;
  static void in_forked_child() noexcept;

 private:
  static std::atomic<CallMemory*> here_;
};
static_assert(sizeof(OperationWord) == 80 && sizeof(CallSlot) == 72 && std::atomic<uint64_t>::is_always_lock_free);

struct ThisThread {
  CallSlot* slot = nullptr;
  const std::string* backend = nullptr;  // whose name is in the slot
};

// One call of this thread, from construction to destruction. Calls may nest.
class CallScope {
 public:
  CallScope(Call call, const std::string& backend) noexcept {
    if (!mine_.slot) [[unlikely]]
      take_slot();
    slot_ = mine_.slot;
    // The names of backends live as long as the process, once they are loaded.
    if (mine_.backend != &backend || call == Call::load) [[unlikely]] {
      mine_.backend = call == Call::load ? nullptr : &backend;
      slot_->backend.store(backend);
    }
    const uint64_t before = slot_->call.load(std::memory_order_relaxed);
    word_ = ((before >> 8) + 1) << 8;
    outer_ = before & 0xff;
    slot_->call.store(word_ | static_cast<uint8_t>(call), std::memory_order_release);
  }
  ~CallScope() {
    // A call within this one has counted on.
    const uint64_t now = slot_->call.load(std::memory_order_relaxed);
    slot_->call.store((now & ~uint64_t{0xff}) | outer_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see CallSlot::abandon()
    if (slot_->state.load(std::memory_order_relaxed) != CallSlot::kUsed) [[unlikely]]
      stay();
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // Of the calling thread.
  static CallSlot& slot() noexcept {
    if (!mine_.slot) [[unlikely]]
      take_slot();
    return *mine_.slot;
  }
  // Whether the calling thread is inside of a backend's code.
  static bool here() noexcept { return mine_.slot && mine_.slot->running() != Call::none; }

 private:
  friend struct CallMemory;
  static void take_slot() noexcept;
  void stay() noexcept;

  __attribute__((tls_model("initial-exec"))) static inline constinit thread_local ThisThread mine_{};
  CallSlot* slot_;
  uint64_t word_, outer_;
};

// What the driver of one engine does in backends. The driver writes, one thread at a time; any thread reads.
class DriverRecord {
 public:
  DriverRecord();
  // The calling thread drives from now on.
  void note_driver() noexcept { slot_.store(&CallScope::slot(), std::memory_order_release); }
  // A collective is in flight from begin_operation(), which returns its place, to end_operation() with this place. The
  // record names one of those in flight: the one that began last, or the one that is left.
  int begin_operation(const std::string& backend, int32_t coll, uint64_t bytes) noexcept;
  void end_operation(int place = 0) noexcept;

  // The call that the driver makes, as CallSlot::call; 0: no thread has driven yet.
  uint64_t call() const {
    const CallSlot* slot = slot_.load(std::memory_order_acquire);
    return slot ? slot->call.load(std::memory_order_acquire) : 0;
  }
  bool abandon(uint64_t call) noexcept {
    CallSlot* slot = slot_.load(std::memory_order_acquire);
    return slot && slot->abandon(call);
  }
  // As OperationWord::operation.
  uint64_t operation() const { return shared_.operation.load(std::memory_order_acquire); }
  int32_t coll() const { return shared_.coll.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return shared_.bytes.load(std::memory_order_relaxed); }
  std::string backend() const { return shared_.backend.load(); }
  // Of the call that the driver makes.
  std::string call_backend() const {
    const CallSlot* slot = slot_.load(std::memory_order_acquire);
    return slot ? slot->backend.load() : "";
  }
  // As CallSlot::where(). Once a thread has driven.
  std::string where(uint64_t call) const { return slot_.load(std::memory_order_acquire)->where(call); }

  SharedText<64> first_tensor, ranks;
  std::atomic<uint32_t> tensors{0};
  std::atomic<int64_t> clock{0};  // about now; for deadlines that may be late by some milliseconds
  int64_t deadline_after = 0;     // of each operation; 0: none. Set before the first call

 private:
  struct Open {
    bool in_flight = false;
    int32_t coll = 0;
    uint64_t bytes = 0;
    const std::string* backend = nullptr;
  };
  OperationWord own_;
  OperationWord& shared_;  // own_, or the launcher's memory
  uint64_t word_ = 0;      // that was written last; an engine before may still end an operation of its own
  Open open_[2];           // at most one for each of two strands (engine/dataplane/schedule.h)
  const std::string* backend_ = nullptr;
  std::atomic<CallSlot*> slot_{nullptr};
};

// Rounding, flush-to-zero and denormals-are-zero of the calling thread. A library that is linked with -ffast-math sets
// the last two where it is loaded, and the thread may be the user's.
class FloatingPoint {
 public:
#if defined(__x86_64__)
  static uint32_t get() noexcept { return _mm_getcsr() & ~kFlags; }
  static void set(uint32_t control) noexcept { _mm_setcsr((_mm_getcsr() & kFlags) | control); }
#elif defined(__aarch64__)
  static uint64_t get() noexcept {
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void set(uint64_t control) noexcept { __asm__ volatile("msr fpcr, %0" : : "r"(control)); }
#else
  static uint32_t get() noexcept { return 0; }
  static void set(uint32_t) noexcept {}
#endif

  FloatingPoint() noexcept : before_(get()) {}
  ~FloatingPoint() {
    if (get() != before_) [[unlikely]]
      set(before_);
  }
  FloatingPoint(const FloatingPoint&) = delete;
  FloatingPoint& operator=(const FloatingPoint&) = delete;

 private:
  static constexpr uint32_t kFlags = 0x3f;  // exceptions that have occurred: results, not control
  const decltype(get()) before_;
};

// The answer of a call into a backend's table. An exception that leaves the backend is its answer INTERNAL, with the
// exception's text: the caller of a C table expects none, and the exception would pass for one of the engine.
template <class F>
hvd_rc answer_of(Call call, const std::string& backend, hvd_error* error, F&& table_call) {
  const CallScope scope(call, backend);
  const FloatingPoint floating_point;
  try {
    return table_call();
  } catch (const abi::__forced_unwind&) {  // the end of the thread
    throw;
  } catch (const std::exception& e) {
    return escaped(error, e.what());
  } catch (...) {
    return escaped(error, "of a type that is no std::exception");
  }
}

}  // namespace hvd::plugins
