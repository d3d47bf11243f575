// The exceptions of the plugin layer, and the translation of a backend's (hvd_rc, hvd_error) pair to an exception.
//
// LoadError: a library could not become a Backend. BackendError: a call into a loaded backend failed.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "hvd/backend_abi.h"

namespace hvd::plugins {

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

// Fills `error` for an exception that has left a backend (backend_call.h), and returns INTERNAL.
hvd_rc escaped(hvd_error* error, const char* what);

// Fills a caller's hvd_error, which may be a shorter, older struct, or null. Returns `rc`.
hvd_rc fill_error(hvd_error* error, hvd_rc rc, const std::string& text, int32_t flags = 0, int64_t vendor_code = 0);

}  // namespace hvd::plugins
