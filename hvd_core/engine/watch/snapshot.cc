// See snapshot.h.
#include "engine/watch/snapshot.h"

#include <algorithm>
#include <cstdio>

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

using watch::Place;
using watch::Submission;

constexpr size_t kLongest = 400;  // bytes of one text
constexpr size_t kMostSubmissions = 16;
constexpr size_t kMostThreads = 8, kMostFrames = 12;

void put_text(agreement::Writer& w, const std::string& text) { w.bytes(std::string_view(text).substr(0, kLongest)); }
void put_whole(agreement::Writer& w, int64_t v) { w.svarint(v); }
int32_t get_whole(agreement::Reader& r) { return r.signed_number<int32_t>(); }

size_t get_count(agreement::Reader& r, size_t most) {
  const uint64_t n = r.count();
  if (n > most) throw agreement::WireError("control message: a snapshot with too many parts");
  return n;
}

void put(agreement::Writer& w, const Place& p) {
  put_text(w, p.file);
  put_whole(w, p.line);
  put_text(w, p.function);
  put_text(w, p.source);
  put_text(w, p.caller);
}

Place get_place(agreement::Reader& r) {
  Place p;
  p.file = r.bytes();
  p.line = get_whole(r);
  p.function = r.bytes();
  p.source = r.bytes();
  p.caller = r.bytes();
  return p;
}

void put(agreement::Writer& w, const std::vector<Submission>& all) {
  const size_t n = std::min(all.size(), kMostSubmissions);
  w.varint(n);
  for (size_t i = 0; i < n; ++i) {
    const Submission& s = all[i];
    put_text(w, s.operation);
    put_text(w, s.name);
    put_whole(w, s.process_set);
    w.f64(s.age_s);
    put(w, s.place);
    w.u8(s.deferred);
  }
}

std::vector<Submission> get_submissions(agreement::Reader& r) {
  std::vector<Submission> all(get_count(r, kMostSubmissions));
  for (Submission& s : all) {
    s.operation = r.bytes();
    s.name = r.bytes();
    s.process_set = get_whole(r);
    s.age_s = r.f64();
    s.place = get_place(r);
    s.deferred = r.u8() != 0;
  }
  return all;
}

void put(agreement::Writer& w, const watch::Threads& t) {
  const size_t n = std::min(t.threads.size(), kMostThreads);
  w.varint(n);
  for (size_t i = 0; i < n; ++i) {
    const watch::Thread& thread = t.threads[i];
    put_text(w, thread.name);
    w.u8(static_cast<uint8_t>(thread.is_main | thread.in_engine << 1));
    const size_t frames = std::min(thread.frames.size(), kMostFrames);
    w.varint(frames);
    for (size_t k = 0; k < frames; ++k) put(w, thread.frames[k]);
    put_whole(w, thread.site < static_cast<int32_t>(frames) ? thread.site : -1);
  }
  put_text(w, t.note);
  w.u8(static_cast<uint8_t>(t.lock_held | t.moved << 1));
  put(w, t.before);
  w.f64(t.busy);
}

watch::Threads get_threads(agreement::Reader& r) {
  watch::Threads t;
  t.threads.resize(get_count(r, kMostThreads));
  for (watch::Thread& thread : t.threads) {
    thread.name = r.bytes();
    const uint8_t flags = r.u8();
    thread.is_main = flags & 1;
    thread.in_engine = flags & 2;
    thread.frames.resize(get_count(r, kMostFrames));
    for (Place& p : thread.frames) p = get_place(r);
    thread.site = get_whole(r);
    if (thread.site < -1 || thread.site >= static_cast<int32_t>(thread.frames.size()))
      throw agreement::WireError("control message: a snapshot names a frame that it lacks");
  }
  t.note = r.bytes();
  const uint8_t flags = r.u8();
  t.lock_held = flags & 1;
  t.moved = flags & 2;
  t.before = get_place(r);
  t.busy = r.f64();
  return t;
}

}  // namespace

std::string encode(const watch::Snapshot& s) {
  std::string text;
  agreement::Writer w(text);
  put_whole(w, s.rank);
  put_text(w, s.host);
  put_whole(w, s.pid);
  w.varint(s.submissions);
  put(w, s.waiting);
  put(w, s.last);
  w.f64(s.joined_s);
  w.u8(s.leaving);
  put_text(w, s.error);
  w.f64(s.error_age_s);
  put(w, s.program);
  return text;
}

watch::Snapshot decode(std::string_view text) {
  agreement::Reader r(text);
  watch::Snapshot s;
  s.rank = get_whole(r);
  s.host = r.bytes();
  s.pid = get_whole(r);
  s.submissions = r.varint();
  s.waiting = get_submissions(r);
  s.last = get_submissions(r);
  s.joined_s = r.f64();
  s.leaving = r.u8() != 0;
  s.error = r.bytes();
  s.error_age_s = r.f64();
  s.program = get_threads(r);
  return s;
}

}  // namespace hvd::watch
