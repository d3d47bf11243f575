// Text that another process, a backend or a file gave, made safe to show in a log, an exception or a terminal; and
// JSON. Any thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace hvd::base {

constexpr size_t kLongestShown = size_t{64} << 10;

// `text` as valid UTF-8 without control characters. Control and direction characters and invalid bytes become \xNN or
// \u{NNNN}; tabs stay. A further line is indented, so that it cannot pass for a line of the log. Text above `most`
// bytes is cut, and the result says so. Text that is fine already is returned as it is, without an allocation.
std::string printable(std::string text, size_t most = kLongestShown);

// `text` with a question mark in place of each byte that is not valid UTF-8.
std::string valid_utf8(std::string_view text);

// Writes JSON: values are made bottom up and are text from the start. Plain values; any thread.
class Json {
 public:
  static Json object() { return Json("{", "}"); }
  static Json array() { return Json("[", "]"); }
  template <typename T>
    requires std::is_arithmetic_v<T>
  explicit Json(T v) {
    if constexpr (std::is_same_v<T, bool>) {
      text_ = v ? "true" : "false";
    } else if constexpr (std::is_floating_point_v<T>) {
      char raw[32];
      std::snprintf(raw, sizeof raw, "%.3f", v);
      text_ = std::isfinite(v) && v < 1e15 && v > -1e15 ? raw : "null";
    } else {
      text_ = std::to_string(v);
    }
  }
  explicit Json(std::string_view v) {
    text_ = "\"";
    for (const char c : printable(std::string(v))) {
      char raw[8];
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        std::snprintf(raw, sizeof raw, "\\u%04x", static_cast<unsigned>(c));
        text_ += raw;
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  Json& set(std::string_view key, const Json& v) { return add(Json(key).text() + ": " + v.text()); }
  template <typename T>
  Json& set(std::string_view key, const T& v) {
    return set(key, Json(v));
  }
  Json& push(const Json& v) { return add(v.text()); }
  std::string text() const { return text_ + end_; }

 private:
  Json(const char* begin, const char* end) : text_(begin), end_(end) {}
  Json& add(const std::string& v) {
    if (text_.size() > 1) text_ += ", ";
    text_ += v;
    return *this;
  }
  std::string text_, end_;
};

}  // namespace hvd::base
