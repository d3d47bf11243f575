// See snapshot_wire.h.
#include "engine/control/snapshot_wire.h"

#include <algorithm>

#include "engine/control/wire.h"

namespace hvd::control {
namespace {

using observe::Place;
using observe::Submission;

constexpr size_t kLongest = 400;  // bytes of one text
constexpr size_t kMostSubmissions = 16;
constexpr size_t kMostThreads = 8, kMostFrames = 12;

void put_text(Writer& w, const std::string& text) { w.bytes(std::string_view(text).substr(0, kLongest)); }
void put_whole(Writer& w, int64_t v) { w.svarint(v); }
int32_t get_whole(Reader& r) { return r.signed_number<int32_t>(); }

size_t get_count(Reader& r, size_t most) {
  const uint64_t n = r.count();
  if (n > most) throw WireError("control message: a snapshot with too many parts");
  return n;
}

void put(Writer& w, const Place& p) {
  put_text(w, p.file);
  put_whole(w, p.line);
  put_text(w, p.function);
  put_text(w, p.source);
  put_text(w, p.caller);
}

Place get_place(Reader& r) {
  Place p;
  p.file = r.bytes();
  p.line = get_whole(r);
  p.function = r.bytes();
  p.source = r.bytes();
  p.caller = r.bytes();
  return p;
}

void put(Writer& w, const std::vector<Submission>& all) {
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

std::vector<Submission> get_submissions(Reader& r) {
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

void put(Writer& w, const observe::Threads& t) {
  const size_t n = std::min(t.threads.size(), kMostThreads);
  w.varint(n);
  for (size_t i = 0; i < n; ++i) {
    const observe::Thread& thread = t.threads[i];
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

observe::Threads get_threads(Reader& r) {
  observe::Threads t;
  t.threads.resize(get_count(r, kMostThreads));
  for (observe::Thread& thread : t.threads) {
    thread.name = r.bytes();
    const uint8_t flags = r.u8();
    thread.is_main = flags & 1;
    thread.in_engine = flags & 2;
    thread.frames.resize(get_count(r, kMostFrames));
    for (Place& p : thread.frames) p = get_place(r);
    thread.site = get_whole(r);
    if (thread.site < -1 || thread.site >= static_cast<int32_t>(thread.frames.size()))
      throw WireError("control message: a snapshot names a frame that it lacks");
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

std::string encode(const observe::Snapshot& s) {
  std::string text;
  Writer w(text);
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

observe::Snapshot decode(std::string_view text) {
  Reader r(text);
  observe::Snapshot s;
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

}  // namespace hvd::control
