// Backend results as exceptions and back. See errors.h.
#include "engine/plugins/errors.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace hvd::plugins {
namespace {

constexpr const char* kNames[] = {"OK",      "INPROGRESS", "INVALID", "UNSUPPORTED", "UNAVAILABLE", "NOMEM",
                                  "TIMEOUT", "ABORTED",    "REMOTE",  "DEVICE",      "INTERNAL",    "ABI"};
constexpr int32_t kKnown = sizeof(kNames) / sizeof(kNames[0]);

// The length of the UTF-8 sequence at p (n bytes left); 0 if the bytes are not UTF-8.
size_t utf8_length(const unsigned char* p, size_t n) {
  size_t length = p[0] < 0x80                   ? 1
                  : p[0] >= 0xC2 && p[0] < 0xE0 ? 2
                  : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
                  : p[0] >= 0xF0 && p[0] < 0xF5 ? 4
                                                : 0;
  if (length == 0 || length > n) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((p[i] & 0xC0) != 0x80) return 0;
  }
  if (p[0] == 0xE0 && p[1] < 0xA0) return 0;
  if (p[0] == 0xED && p[1] > 0x9F) return 0;
  if (p[0] == 0xF0 && p[1] < 0x90) return 0;
  if (p[0] == 0xF4 && p[1] > 0x8F) return 0;
  return length;
}

}  // namespace

std::string clean_text(const char* text, size_t capacity) {
  const size_t n = strnlen(text, capacity);
  const auto* p = reinterpret_cast<const unsigned char*>(text);
  std::string out;
  for (size_t i = 0; i < n;) {
    const size_t length = utf8_length(p + i, n - i);
    if (length == 0) {
      out += '?';
      ++i;
    } else {
      out.append(text + i, length);
      i += length;
    }
  }
  return out;
}

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
