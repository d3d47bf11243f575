// See threads.h. Straight system calls on masks of any length: cpu_set_t ends at 1024 cores, kernels do not.
#include "engine/base/threads.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace hvd::base {
namespace {

constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
constexpr size_t kMostWords = 1u << 14;  // a million cores

bool has(const CoreMask& mask, int core) {
  const auto at = static_cast<size_t>(core);
  return core >= 0 && at / kWordBits < mask.size() && (mask[at / kWordBits] >> (at % kWordBits) & 1) != 0;
}

CoreMask only(int core) {
  CoreMask mask(static_cast<size_t>(core) / kWordBits + 1);
  mask.back() = 1ul << (static_cast<size_t>(core) % kWordBits);
  return mask;
}

bool within(const CoreMask& inner, const CoreMask& outer) {
  for (size_t i = 0; i < inner.size(); ++i)
    if ((inner[i] & ~(i < outer.size() ? outer[i] : 0ul)) != 0) return false;
  return true;
}

bool same(const CoreMask& a, const CoreMask& b) { return within(a, b) && within(b, a); }

bool set_own(const CoreMask& mask) {
  return ::sched_setaffinity(0, mask.size() * sizeof mask[0], reinterpret_cast<const cpu_set_t*>(mask.data())) == 0;
}

}  // namespace

CoreMask own_cores() {
  // The kernel refuses a buffer that is smaller than its own mask.
  for (size_t words = 16; words <= kMostWords; words *= 2) {
    CoreMask mask(words);
    if (::sched_getaffinity(0, words * sizeof mask[0], reinterpret_cast<cpu_set_t*>(mask.data())) == 0) return mask;
    if (errno != EINVAL) break;
  }
  return {};
}

std::string pin_child(pthread_t thread, int core) {
  if (!has(own_cores(), core)) return "it is not among the cores that this thread may use";
  const CoreMask mask = only(core);
  const int error =
      ::pthread_setaffinity_np(thread, mask.size() * sizeof mask[0], reinterpret_cast<const cpu_set_t*>(mask.data()));
  return error == 0 ? "" : std::strerror(error);
}

void use_all_of(const CoreMask& process) {
  // It fails if a cpuset was made smaller meanwhile; then the kernel has set the cores already.
  if (!process.empty() && !same(own_cores(), process)) (void)set_own(process);
}

void keep_within(const CoreMask& process, int pinned) {
  const CoreMask mine = own_cores();
  if (process.empty() || mine.empty()) return;
  if (within(mine, process) && !(pinned >= 0 && same(mine, only(pinned)))) return;
  use_all_of(process);
}

}  // namespace hvd::base
