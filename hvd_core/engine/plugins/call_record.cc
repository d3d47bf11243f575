// See call_record.h.
#include "engine/plugins/call_record.h"

#include <unistd.h>

#include <mutex>
#include <new>

namespace hvd::plugins {

const char* name_of(Call call) {
  constexpr std::array kNames{"none",
                              "load",
                              "create",
                              "collective",
                              "group_begin or group_end",
                              "req_test",
                              "req_wait",
                              "req_free",
                              "finalize",
                              "destroy",
                              "abort",
                              "split",
                              "window_create or window_destroy",
                              "query"};
  return kNames[static_cast<size_t>(call) % kNames.size()];
}

bool CallRecord::abandon(uint64_t call) noexcept {
  uint32_t none = kNone;
  if (which(call) == Call::None || !fate_.compare_exchange_strong(none, kPending)) return false;
  // Both sides store, then load, with a fence between: either end() sees the fate, or the call is seen to have ended.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool there = this->call() == call;
  fate_.store(there ? kLeft : kNone);
  return there;
}

void CallRecord::keep_here() noexcept {
  const LastCall& there = *last();
  if (&there == &own_) return;
  own_.call.store(there.call.load());
  own_.operation.store(there.operation.load());
  own_.bytes.store(there.bytes.load());
  own_.coll.store(there.coll.load());
  last_.store(&own_);
}

void CallRecords::keep_in(void* memory, const std::shared_ptr<CallRecords>& records) {
  static std::mutex mutex;
  static std::weak_ptr<CallRecords> earlier;
  const std::lock_guard lock(mutex);
  // A call that does not come back outlives its engine, and must not end a call of this one.
  if (const auto before = earlier.lock())
    for (CallRecord* record : before->all()) record->keep_here();
  earlier = records;
  auto* last = static_cast<LastCall*>(memory);
  for (CallRecord* record : records->all()) record->keep_in(new (last++) LastCall);
}

void CallRecord::stay() noexcept {
  while (fate_.load() == kPending) ::usleep(1000);
  while (fate_.load() == kLeft) ::pause();
}

std::atomic<SideSlot*> SideCall::slots_{nullptr};

void SideCall::keep_in(void* memory) noexcept {
  if (slots_.load() == memory) return;
  auto* const slots = static_cast<SideSlot*>(memory);
  for (int i = 0; i < kSlots; ++i) new (slots + i) SideSlot;
  slots_.store(slots, std::memory_order_release);
}

SideSlot* SideCall::take(const char* call, const std::string& backend) noexcept {
  SideSlot* const slots = slots_.load(std::memory_order_relaxed);
  for (int i = 0; i < kSlots; ++i) {
    uint32_t expected = SideSlot::kFree;
    if (slots[i].state.load(std::memory_order_relaxed) != SideSlot::kFree ||
        !slots[i].state.compare_exchange_strong(expected, SideSlot::kTaken, std::memory_order_acquire))
      continue;
    slots[i].call.store(call);
    slots[i].backend.store(backend);
    slots[i].state.store(SideSlot::kInside, std::memory_order_release);
    return slots + i;
  }
  return nullptr;
}

}  // namespace hvd::plugins
