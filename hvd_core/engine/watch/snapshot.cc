// See snapshot.h.
#include "engine/watch/snapshot.h"

#include <algorithm>
#include <cstdio>
#include <type_traits>

#include "engine/agreement/wire.h"

namespace hvd::watch {

std::string text_of(const Place& place) {
  std::string text = place.file;
  if (place.line > 0) text += ":" + std::to_string(place.line);
  if (!place.function.empty() && place.function != "<module>") text += " in " + place.function;
  return text;
}

std::string at(const Place& place) {
  if (!place.known()) return "";
  return " at " + text_of(place) + (place.caller.empty() ? "" : " (called at " + place.caller + ")") +
         (place.source.empty() ? "" : ": " + place.source);
}

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof text, s < 99.95 ? "%.1f s" : "%.0f s", s);
  return text;
}

namespace {

constexpr size_t kLongest = 400;  // bytes of one text
constexpr size_t kMost = 16;      // items of a list

struct Encoder {
  agreement::Writer& w;

  void operator()(const char*, const auto& value) { put(value); }
  void put(const std::string& text) { w.bytes(std::string_view(text).substr(0, kLongest)); }
  void put(int32_t v) { w.svarint(v); }
  void put(uint64_t v) { w.varint(v); }
  void put(double v) { w.f64(v); }
  void put(bool v) { w.u8(v); }
  template <typename T>
  void put(const std::vector<T>& list) {
    const size_t n = std::min(list.size(), kMost);
    w.varint(n);
    for (size_t i = 0; i < n; ++i) put(list[i]);
  }
  template <typename T>
    requires std::is_class_v<T>
  void put(const T& part) {
    T::fields(part, *this);
  }
};

struct Decoder {
  agreement::Reader& r;

  void operator()(const char*, auto& value) { get(value); }
  void get(std::string& text) { text = r.bytes(); }
  void get(int32_t& v) { v = r.signed_number<int32_t>(); }
  void get(uint64_t& v) { v = r.varint(); }
  void get(double& v) { v = r.f64(); }
  void get(bool& v) { v = r.u8() != 0; }
  template <typename T>
  void get(std::vector<T>& list) {
    const uint64_t n = r.count();
    if (n > kMost) throw agreement::WireError("control message: a snapshot with too many parts");
    list.resize(n);
    for (T& item : list) get(item);
  }
  template <typename T>
    requires std::is_class_v<T>
  void get(T& part) {
    T::fields(part, *this);
  }
};

template <typename T>
base::Json json(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return base::Json(value);
  } else if constexpr (requires { value.begin(); }) {
    base::Json list = base::Json::array();
    for (const auto& item : value) list.push(json(item));
    return list;
  } else {
    base::Json object = base::Json::object();
    T::fields(value, [&](const char* name, const auto& field) { object.set(name, json(field)); });
    return object;
  }
}

}  // namespace

std::string encode(const Snapshot& s) {
  std::string text;
  agreement::Writer writer(text);
  Encoder{writer}.put(s);
  return text;
}

Snapshot decode(std::string_view text) {
  agreement::Reader reader(text);
  Snapshot s;
  Decoder{reader}.get(s);
  for (const Thread& t : s.program.threads)
    if (t.site < -1 || t.site >= static_cast<int32_t>(t.frames.size()))
      throw agreement::WireError("control message: a snapshot names a frame that it lacks");
  return s;
}

base::Json json_of(const Snapshot& s) {
  return json(s).set("stacks_read", s.program.gil_held ? "not: the GIL was not released" : "with the GIL");
}

}  // namespace hvd::watch
