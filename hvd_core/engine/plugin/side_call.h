// Calls into a backend that any thread may make at any time: those of its device table, query, async_error and the
// like. They are noted for the launcher, which says in which call a rank has ended (hvd_core/_runtime/crash_reports.py
// reads the memory, with the same layout). The calls of the engine's own threads, which are watched as well, have
// call_record.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "engine/plugin/call_record.h"
#include "engine/plugin/errors.h"

namespace hvd::plugin {

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

}  // namespace hvd::plugin
