// See call_record.h.
#include "engine/plugin/call_record.h"

#include <unistd.h>

namespace hvd::plugin {

const char* name_of(Call call) {
  constexpr std::array kNames{"none",     "load",     "create",   "collective", "group_begin or group_end",
                              "req_test", "req_wait", "req_free", "finalize",   "destroy",
                              "abort"};
  return kNames[static_cast<size_t>(call) % kNames.size()];
}

bool CallRecord::abandon(uint64_t call) noexcept {
  uint32_t none = kNone;
  if (which(call) == Call::None || !fate_.compare_exchange_strong(none, kPending)) return false;
  // end() stores, then loads, without a fence. After this time both have become visible.
  ::usleep(100'000);
  const bool there = this->call() == call;
  fate_.store(there ? kLeft : kNone);
  return there;
}

void CallRecord::stay() noexcept {
  while (fate_.load() == kPending) ::usleep(1000);
  while (fate_.load() == kLeft) ::pause();
}

}  // namespace hvd::plugin
