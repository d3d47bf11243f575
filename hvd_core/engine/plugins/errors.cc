// Backend results as exceptions and back. See errors.h.
#include "engine/plugins/errors.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine/base/text.h"

namespace hvd::plugins {
namespace {

constexpr const char* kNames[] = {"OK",      "INPROGRESS", "INVALID", "UNSUPPORTED", "UNAVAILABLE", "NOMEM",
                                  "TIMEOUT", "ABORTED",    "REMOTE",  "DEVICE",      "INTERNAL",    "ABI"};
constexpr int32_t kKnown = sizeof(kNames) / sizeof(kNames[0]);

}  // namespace

std::string clean_text(const char* text, size_t capacity) { return base::valid_utf8({text, strnlen(text, capacity)}); }

std::string rc_name(hvd_rc rc) {
  if (rc >= 0 && rc < kKnown) return kNames[rc];
  return "code " + std::to_string(rc);
}

hvd_error empty_error() {
  // Every call uses this, polls included, so only the ends of the text are cleared, not its kilobyte.
  hvd_error error;
  constexpr size_t kBehindText = offsetof(hvd_error, text) + sizeof(error.text);
  std::memset(&error, 0, offsetof(hvd_error, text));
  std::memset(reinterpret_cast<char*>(&error) + kBehindText, 0, sizeof(error) - kBehindText);
  error.text[0] = error.text[sizeof(error.text) - 1] = '\0';
  error.hdr.struct_size = sizeof(error);
  error.hdr.major = HVD_ABI_MAJOR;
  error.hdr.minor = HVD_ABI_MINOR;
  return error;
}

void throw_backend_error(const std::string& who, const std::string& what, hvd_rc rc, const hvd_error& error) {
  int64_t vendor_code = error.vendor_code;
  int32_t code = rc;
  // Also OK and INPROGRESS: callers pass them only if the call must not answer them.
  if (code <= HVD_INPROGRESS || code >= kKnown) {
    code = HVD_E_INTERNAL;
  }
  std::string text = clean_text(error.text, sizeof(error.text));
  if (text.empty()) text = "the backend gave no text";
  text = who + ": " + what + ": " + text + " (" + rc_name(code);
  if (vendor_code != 0) text += ", vendor code " + std::to_string(vendor_code);
  if (code != rc) text += "; the call answered " + std::to_string(rc);
  text += ")";
  throw BackendError(code, error.flags, vendor_code, text);
}

hvd_rc escaped(hvd_error* error, const char* what) {
  return fill_error(error, HVD_E_INTERNAL, std::string("a C++ exception has left the backend: ") + what);
}

hvd_rc fill_error(hvd_error* error, hvd_rc rc, const std::string& text, int32_t flags, int64_t vendor_code) {
  if (error == nullptr) return rc;
  hvd_error mine;
  std::memset(&mine, 0, sizeof(mine));
  mine.hdr = error->hdr;  // the caller's size and chain stay
  mine.code = rc;
  mine.flags = flags;
  mine.vendor_code = vendor_code;
  const size_t size = std::min<size_t>(error->hdr.struct_size, sizeof(mine));
  const size_t capacity = size > offsetof(hvd_error, text) ? size - offsetof(hvd_error, text) : 0;
  if (capacity > 0) std::memcpy(mine.text, text.data(), std::min(text.size(), capacity - 1));
  std::memcpy(error, &mine, size);
  return rc;
}

}  // namespace hvd::plugins
