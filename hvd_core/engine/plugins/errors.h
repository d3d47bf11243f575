// A call into a backend, from construction to destruction: what the thread gets back as it was, and what an exit
// handler must know of it. Every call of the engine into a backend's table is inside of one (answer_of()).
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "hvd/backend_abi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd::plugins {

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

// The exceptions of the plugin layer, and the translation of a backend's (hvd_rc, hvd_error) pair to an exception.
//
// LoadError: a library could not become a Backend. BackendError: a call into a loaded backend failed.
// Any thread.

// A library or its tables were refused; what() is the whole message for the user.
struct LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call into a backend failed. `code` is one of the HVD_E_* numbers, `flags` a set of HVD_EF_*; `vendor_code` is the
// number of the backend's own library, or 0. what() reads "shm: allreduce: peer 3 is gone (REMOTE)".
struct BackendError : std::runtime_error {
  BackendError(int32_t code, int32_t flags, int64_t vendor_code, const std::string& text)
      : std::runtime_error(text), code(code), flags(flags), vendor_code(vendor_code) {}
  int32_t code;
  int32_t flags;
  int64_t vendor_code;
};

// The collective cannot be carried out, and all members of the communicator find that alike before any of them has
// started it: only this request fails, not the job.
struct Refused : BackendError {
  explicit Refused(const std::string& text) : BackendError(HVD_E_UNSUPPORTED, 0, 0, text) {}
};

// "TIMEOUT" for HVD_E_TIMEOUT, "code 99" for a number that this ABI does not have.
std::string rc_name(hvd_rc rc);

// An hvd_error to pass to a backend.
hvd_error empty_error();

// A backend's text as UTF-8, because it may become a Python string. Reads at most `capacity` bytes.
std::string clean_text(const char* text, size_t capacity);

// Throws the BackendError for a failed call: `who` is the backend, `what` the call. An answer that the ABI does not
// know, or does not allow for the call, becomes INTERNAL; the text keeps the number.
[[noreturn]] void throw_backend_error(const std::string& who, const std::string& what, hvd_rc rc,
                                      const hvd_error& error);

// The answer of a call into a backend's table. An exception that leaves the backend is its answer INTERNAL, with the
// exception's text: the caller of a C table expects none, and the exception would pass for one of the engine.
hvd_rc escaped(hvd_error* error, const char* what);
template <class Call>
hvd_rc answer_of(hvd_error* error, Call&& call) {
  const Guest guest;
  try {
    return call();
  } catch (const abi::__forced_unwind&) {  // the end of the thread
    throw;
  } catch (const std::exception& e) {
    return escaped(error, e.what());
  } catch (...) {
    return escaped(error, "of a type that is no std::exception");
  }
}

// Fills a caller's hvd_error, which may be a shorter, older struct, or null. Returns `rc`.
hvd_rc fill_error(hvd_error* error, hvd_rc rc, const std::string& text, int32_t flags = 0, int64_t vendor_code = 0);

}  // namespace hvd::plugins
