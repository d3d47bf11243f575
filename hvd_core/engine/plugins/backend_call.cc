// See backend_call.h.
#include "engine/plugins/backend_call.h"

#include <unistd.h>

#include <iterator>
#include <new>

namespace hvd::plugins {

const char* name_of(Call call) {
  static constexpr const char* kNames[] = {
      "none",
      "load",
#define HVD_SLOT(table, name, since, need) #name,
#include "hvd/backend_slots.inc"
  };
  return kNames[static_cast<size_t>(call) % std::size(kNames)];
}

std::string CallSlot::where(uint64_t word) const {
  return std::string(" in the call ") + name_of(which(word)) + " of backend '" + backend.load() + "'";
}

bool CallSlot::abandon(uint64_t word) noexcept {
  uint32_t used = kUsed;
  if (which(word) == Call::none || !state.compare_exchange_strong(used, kAbandoning)) return false;
  // Both sides store, then load, with a fence between: either the scope's end sees the state, or the call is seen to
  // have ended.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool there = call.load() == word;
  state.store(there ? kAbandoned : kUsed);
  return there;
}

void CallScope::stay() noexcept {
  while (slot_->state.load() == CallSlot::kAbandoning) ::usleep(1000);
  while (slot_->state.load() >= CallSlot::kAbandoned) ::pause();
}

namespace {
constinit CallMemory own_memory;
}  // namespace

constinit std::atomic<CallMemory*> CallMemory::here_{&own_memory};

void CallMemory::keep_in(void* memory) noexcept {
  if (memory == here_.load()) return;
  here_.store(new (memory) CallMemory, std::memory_order_release);
  CallScope::mine_ = {};
}

// The launcher's memory is the parent's.
void CallMemory::in_forked_child() noexcept {
  here_.store(new (&own_memory) CallMemory);
  CallScope::mine_ = {};
}

void CallScope::take_slot() noexcept {
  // Frees the slot at the end of the thread.
  struct Release {
    ~Release() {
      // exit() ends these objects first, also within a call: the slot must go on naming it.
      if (!mine_.slot || here()) return;
      mine_.slot->state.store(CallSlot::kFree, std::memory_order_release);
      mine_ = {};
    }
  };
  static thread_local const Release release;
  (void)release;
  mine_ = {};
  for (CallSlot& slot : CallMemory::here().slots) {
    uint32_t unused = CallSlot::kFree;
    if (!slot.state.compare_exchange_strong(unused, CallSlot::kUsed)) continue;
    mine_.slot = &slot;
    return;
  }
  mine_.slot = new CallSlot;  // leaked: a DriverRecord may point to it
  mine_.slot->state = CallSlot::kUsed;
}

DriverRecord::DriverRecord() : shared_(&CallMemory::here() == &own_memory ? own_ : CallMemory::here().operation) {
  shared_.operation.store(shared_.operation.load() & ~uint64_t{1});
}

int DriverRecord::begin_operation(const std::string& backend, int32_t coll, uint64_t bytes) noexcept {
  const int place = open_[0].in_flight ? 1 : 0;
  open_[place] = {true, coll, bytes, &backend};
  if (backend_ != &backend) {
    backend_ = &backend;
    shared_.backend.store(backend);
  }
  shared_.coll.store(coll, std::memory_order_relaxed);
  shared_.bytes.store(bytes, std::memory_order_relaxed);
  word_ = ((shared_.operation.load(std::memory_order_relaxed) >> 1) + 1) << 1 | 1;
  shared_.operation.store(word_, std::memory_order_release);
  return place;
}

void DriverRecord::end_operation(int place) noexcept {
  open_[place].in_flight = false;
  if (shared_.operation.load(std::memory_order_relaxed) != word_) return;
  if (const Open& other = open_[1 - place]; other.in_flight) {
    shared_.coll.store(other.coll, std::memory_order_relaxed);
    shared_.bytes.store(other.bytes, std::memory_order_relaxed);
    if (backend_ != other.backend) {
      backend_ = other.backend;
      shared_.backend.store(*backend_);
    }
    return;
  }
  shared_.operation.store(word_ & ~uint64_t{1}, std::memory_order_release);
}

}  // namespace hvd::plugins
