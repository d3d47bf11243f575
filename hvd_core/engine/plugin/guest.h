// A call into a backend, from construction to destruction: what the thread gets back as it was, and what an exit
// handler must know of it. Every call of the engine into a backend's table is inside of one (answer_of()).
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd::plugin {

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

class Guest {
 public:
  Guest() noexcept { ++depth_; }
  ~Guest() { --depth_; }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  // Whether the calling thread is inside of a backend's code.
  static bool here() noexcept { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
  FloatingPoint floating_point_;
};

}  // namespace hvd::plugin
