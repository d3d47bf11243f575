// What the plugin layer throws, and the one translation from a backend's (hvd_rc, hvd_error) pair to an exception.
//
// LoadError: a library could not become a Backend. BackendError: a call into a loaded backend failed.
// Any thread. Knows nothing about what the engine does with a failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "hvd/backend_abi.h"

namespace hvd::plugin {

// A library or its tables were refused; what() is the whole message, ready to be shown to a user.
struct LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call into a backend failed. `code` is one of the HVD_E_* numbers, `flags` a set of HVD_EF_*; `vendor_code` is what
// the backend's library said, 0 when it said nothing. what() reads "shm: allreduce: peer 3 is gone (REMOTE)".
struct BackendError : std::runtime_error {
  BackendError(int32_t code, int32_t flags, int64_t vendor_code, const std::string& text)
      : std::runtime_error(text), code(code), flags(flags), vendor_code(vendor_code) {}
  int32_t code;
  int32_t flags;
  int64_t vendor_code;
};

// What is asked for cannot be done by any way that there is, and all members of the communicator come to that
// conclusion alike before any of them has begun: only this request fails, not the job.
struct Refused : BackendError {
  explicit Refused(const std::string& text) : BackendError(HVD_E_UNSUPPORTED, 0, 0, text) {}
};

// "TIMEOUT" for HVD_E_TIMEOUT, "code 99" for a number that this ABI does not have.
std::string rc_name(hvd_rc rc);

// An hvd_error that is ready to be handed to a backend.
hvd_error empty_error();

// A backend's text is foreign bytes: bounded, and made UTF-8 because it may end in a Python string.
std::string clean_text(const char* text, size_t capacity);

// Throws the BackendError for a failed call: `who` is the backend, `what` the call. An answer that this ABI does
// not know, or that the call may not give, becomes INTERNAL, and the text keeps the number.
[[noreturn]] void throw_backend_error(const std::string& who, const std::string& what, hvd_rc rc,
                                      const hvd_error& error);

// Fills an out-struct of a caller who may know a shorter hvd_error than we do. A NULL `error` is fine. Returns `rc`.
hvd_rc fill_error(hvd_error* error, hvd_rc rc, const std::string& text, int32_t flags = 0, int64_t vendor_code = 0);

}  // namespace hvd::plugin
