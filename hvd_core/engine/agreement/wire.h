// Byte-level reading and writing for the control plane's messages: little-endian varints, doubles and strings.
//
// Writer grows a std::string; Reader walks a span and throws WireError on anything truncated or absurd, so that bytes
// from a peer can never make the engine read past a buffer. Neither knows what a message means. Any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::agreement {

struct WireError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void u8(uint8_t v) { out_.push_back(static_cast<char>(v)); }
  void varint(uint64_t v) {
    while (v >= 0x80) {
      u8(static_cast<uint8_t>(v) | 0x80);
      v >>= 7;
    }
    u8(static_cast<uint8_t>(v));
  }
  // Zigzag, so that small negative numbers stay short.
  void svarint(int64_t v) { varint((static_cast<uint64_t>(v) << 1) ^ static_cast<uint64_t>(v >> 63)); }
  void f64(double v) {
    char raw[sizeof v];
    std::memcpy(raw, &v, sizeof v);
    out_.append(raw, sizeof raw);
  }
  void bytes(std::string_view v) {
    varint(v.size());
    out_.append(v);
  }

 private:
  std::string& out_;
};

class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}

  bool done() const { return in_.empty(); }

  uint8_t u8() {
    need(1);
    auto v = static_cast<uint8_t>(in_[0]);
    in_.remove_prefix(1);
    return v;
  }
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t b = u8();
      v |= static_cast<uint64_t>(b & 0x7f) << shift;
      if (!(b & 0x80)) return v;
    }
    throw WireError("control message: a varint is longer than 64 bits");
  }
  int64_t svarint() {
    uint64_t v = varint();
    return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1);
  }
  // A varint, or a zigzag one, that T can hold: a rank is never negative, and no number is cut.
  template <typename T>
  T number() {
    const uint64_t v = varint();
    if (!std::in_range<T>(v)) throw WireError("control message: the number " + std::to_string(v) + " is too large");
    return static_cast<T>(v);
  }
  template <typename T>
  T signed_number() {
    const int64_t v = svarint();
    if (!std::in_range<T>(v)) throw WireError("control message: the number " + std::to_string(v) + " is out of range");
    return static_cast<T>(v);
  }
  // A count of items of at least one byte each: bounded by the bytes that are left.
  uint64_t count() {
    uint64_t v = varint();
    if (v > in_.size()) throw WireError("control message: a count runs past the end of the message");
    return v;
  }
  // As many items as are announced. Memory is taken for those that are there, not for those that are announced: an item
  // may be much larger than the byte that announces it.
  template <typename Get>
  auto list(Get&& get) {
    std::vector<decltype(get())> items;
    for (uint64_t n = count(); n > 0; --n) items.push_back(get());
    return items;
  }
  double f64() {
    need(sizeof(double));
    double v;
    std::memcpy(&v, in_.data(), sizeof v);
    in_.remove_prefix(sizeof v);
    return v;
  }
  std::string_view bytes() {
    uint64_t n = varint();
    need(n);
    auto v = in_.substr(0, n);
    in_.remove_prefix(n);
    return v;
  }

 private:
  void need(uint64_t n) const {
    if (n > in_.size()) throw WireError("control message: truncated");
  }
  std::string_view in_;
};

}  // namespace hvd::agreement
