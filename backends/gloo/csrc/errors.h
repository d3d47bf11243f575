// Gloo's exceptions as codes of the ABI. Any thread.
#pragma once

#include <cstdint>
#include <exception>
#include <hvd/backend.hpp>
#include <string>

namespace hvd::gloo_backend {

// The end of an operation; HVD_OK for success.
struct Failure {
  hvd_rc code = HVD_OK;
  int32_t flags = 0;
  std::string text;

  explicit operator bool() const { return code != HVD_OK; }
  [[noreturn]] void raise() const { throw Error(code, text, flags); }
};

// The failure behind an exception of Gloo's; `during`: the phase in which it was thrown, for the message.
Failure failure_of(std::exception_ptr problem, const std::string& during);

}  // namespace hvd::gloo_backend
