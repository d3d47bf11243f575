// See side_call.h.
#include "engine/plugin/side_call.h"

#include <new>

namespace hvd::plugin {

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

}  // namespace hvd::plugin
