// See text.h.
#include "engine/base/text.h"

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace hvd::base {
namespace {

constexpr std::string_view kIndent = "  ";

unsigned char byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

// The code point that begins at `at`, and its number of bytes in *length; -1 if the bytes are not valid UTF-8.
int32_t code_point(std::string_view text, size_t at, size_t* length) {
  const unsigned char first = byte_at(text, at);
  *length = 1;
  if (first < 0x80) return first;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < n) return -1;
  int32_t code = first & (0xff >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if ((byte_at(text, at + i) & 0xc0) != 0x80) return -1;
    code = code << 6 | (byte_at(text, at + i) & 0x3f);
  }
  const bool too_long = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  if (too_long || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return -1;
  *length = n;
  return code;
}

// Characters that move the cursor, change the direction of the text, or cannot be seen.
bool hidden(int32_t code) {
  return (code < 0x20 && code != '\t' && code != '\n') || (code >= 0x7f && code < 0xa0) ||
         (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

bool begins_unindented_line(std::string_view text, size_t at) {
  return text[at] == '\n' && at + 1 < text.size() && text[at + 1] != ' ';
}

bool fine(std::string_view text) {
  size_t length;
  for (size_t at = 0; at < text.size(); at += length) {
    const int32_t code = code_point(text, at, &length);
    if (code < 0 || hidden(code) || begins_unindented_line(text, at)) return false;
  }
  return true;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string result;
  size_t length;
  for (size_t at = 0; at < text.size(); at += length) {
    const bool valid = code_point(text, at, &length) >= 0;
    result += valid ? text.substr(at, length) : "?";
  }
  return result;
}

std::string printable(std::string text, size_t most) {
  if (text.size() <= most && fine(text)) return text;
  const std::string_view shown = std::string_view(text).substr(0, most);
  std::string result;
  result.reserve(shown.size() + shown.size() / 8);
  char escape[16];
  size_t length;
  for (size_t at = 0; at < shown.size(); at += length) {
    const int32_t code = code_point(shown, at, &length);
    if (code >= 0 && !hidden(code)) {
      result += shown.substr(at, length);
      // Behind the last character that is shown comes the word that text was cut.
      const bool at_the_cut = at + 1 == shown.size() && shown.size() < text.size() && shown[at] == '\n';
      if (at_the_cut || begins_unindented_line(shown, at)) result += kIndent;
      continue;
    }
    if (code < 0x80)  // an invalid byte too
      std::snprintf(escape, sizeof escape, "\\x%02x", byte_at(shown, at));
    else
      std::snprintf(escape, sizeof escape, "\\u{%x}", static_cast<unsigned>(code));
    result += escape;
  }
  if (shown.size() < text.size()) result += "... (" + std::to_string(text.size() - shown.size()) + " bytes more)";
  return result;
}

}  // namespace hvd::base
