// Copying between private and shared memory; see copy.h.
//
// A line of the segment that is about to be overwritten usually lies in a peer's cache. Ordinary stores fetch it from
// there first; the processor's string copy knows that whole lines will be written and does not. The C library switches
// to it too, but only for larger blocks than the slices of a collective are.
#include "copy.h"

#include <cstring>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#include <cpuid.h>
#define HVD_SHM_STRING_COPY 1
#endif

namespace hvd::shm {

#ifdef HVD_SHM_STRING_COPY
namespace {

constexpr size_t kFromBytes = 1024;

bool has_fast_string_copy() {
  unsigned a, b = 0, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & (1u << 9)) != 0;  // ERMS
}

const bool g_fast = has_fast_string_copy();

}  // namespace

void copy_bytes(void* to, const void* from, size_t n) {
  if (n < kFromBytes || !g_fast) {
    std::memcpy(to, from, n);
    return;
  }
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}
#else
void copy_bytes(void* to, const void* from, size_t n) { std::memcpy(to, from, n); }
#endif

}  // namespace hvd::shm
