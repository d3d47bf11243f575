// What one rank does at a moment: operations that wait, the last submissions, the last error, and what its threads run.
//
// One structure for all readers: stall reports print the snapshots of several ranks beside each other. fields() is the
// one list of a structure's fields, for the message and for JSON. Plain values; any thread.
#pragma once

#include <time.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/call_site.h"
#include "engine/base/operations.h"
#include "engine/base/text.h"

namespace hvd::watch {

// A line of the program. Texts come from the rank as they are: printable() before they are shown.
struct Place {
  std::string file = {};  // relative to the rank's working directory, if it is below
  int32_t line = 0;       // 0: not known
  std::string function = {};
  std::string source = {};  // the text of the line, if the file can be read
  std::string caller = {};  // of a line of the user's program: the line of it that called this function, as text

  bool known() const { return !file.empty(); }
  bool operator==(const Place& o) const {
    return file == o.file && line == o.line && function == o.function && caller == o.caller;
  }
  static void fields(auto& s, auto&& f) {
    f("file", s.file);
    f("line", s.line);
    f("function", s.function);
    f("source", s.source);
    f("caller", s.caller);
  }
};

struct Submission {
  std::string operation;    // "allreduce"
  std::string name;         // of the request: "allreduce.loss"
  int32_t process_set = 0;  // the number that users see
  double age_s = 0;
  Place place;
  bool deferred = false;  // waits for a copy of its data from a device

  static void fields(auto& s, auto&& f) {
    f("operation", s.operation);
    f("name", s.name);
    f("process_set", s.process_set);
    f("age_s", s.age_s);
    f("place", s.place);
    f("deferred", s.deferred);
  }
};

struct Thread {
  std::string name = {};  // empty: not known
  bool is_main = false;
  std::vector<Place> frames = {};  // innermost first; inner frames of the engine's own packages are left out
  int32_t site = -1;               // index of the innermost frame of the user's program
  bool in_engine = false;          // an operation of the engine was called in `frames[0]`, and has not returned

  const Place* place() const {
    if (site >= 0) return &frames[static_cast<size_t>(site)];
    return frames.empty() ? nullptr : &frames[0];
  }
  static void fields(auto& s, auto&& f) {
    f("name", s.name);
    f("main", s.is_main);
    f("in_engine", s.in_engine);
    f("site", s.site);
    f("frames", s.frames);
  }
};

// The threads of a rank's program at two moments.
struct Threads {
  std::vector<Thread> threads = {};  // the main thread first
  std::string note = {};             // why threads are missing
  bool gil_held = false;             // the program has not released the GIL in time, so there are no stacks
  bool moved = false;                // the main thread was elsewhere the first time
  Place before = {};                 // where, if it had moved
  double busy = 0;  // share of the time between the two for which the main thread computed, or was ready to

  const Thread* main() const { return !threads.empty() && threads[0].is_main ? &threads[0] : nullptr; }
  static void fields(auto& s, auto&& f) {
    f("busy", s.busy);
    f("moved", s.moved);
    f("before", s.before);
    f("gil_held", s.gil_held);
    f("note", s.note);
    f("threads", s.threads);
  }
};

struct Snapshot {
  int32_t rank = 0;
  std::string host;
  int32_t pid = 0;
  uint64_t submissions = 0;         // all so far
  std::vector<Submission> waiting;  // not done, oldest first
  std::vector<Submission> last;     // newest first
  double joined_s = -1;             // how long it has waited in join(); negative: it has not joined
  bool leaving = false;             // shutdown() was called
  std::string error;                // the last operation that failed on this rank
  double error_age_s = 0;
  bool stuck = false;               // the driver does not answer: it is in a backend's call, and `waiting` is not whole
  std::vector<std::string> engine;  // what the engine does, in lines
  Threads program;

  static void fields(auto& s, auto&& f) {
    f("rank", s.rank);
    f("host", s.host);
    f("pid", s.pid);
    f("submissions", s.submissions);
    f("waiting", s.waiting);
    f("last", s.last);
    f("joined_s", s.joined_s);
    f("leaving", s.leaving);
    f("error", s.error);
    f("error_age_s", s.error_age_s);
    f("is_stuck", s.stuck);
    f("engine", s.engine);
    Threads::fields(s.program, f);
  }
};

// "train.py:12 in main"
std::string text_of(const Place& place);
// " at train.py:12 in main (called at train.py:40): loss.backward()", empty if the place is not known
std::string at(const Place& place);
// "10.2 s"
std::string seconds(double s);
inline std::string seconds_of(int64_t ns) { return seconds(static_cast<double>(ns) / 1e9); }

// The last submissions of a rank, kept as they are and made text only for a report. The caller locks.

// CLOCK_MONOTONIC to some milliseconds, in nanoseconds, at a quarter of the cost of now_ns().
inline int64_t coarse_now_ns() {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

struct Submitted {
  std::shared_ptr<const std::string> name;
  base::CallSite site;
  int64_t at_ns = 0;  // coarse_now_ns()
  uint32_t set = 0;   // agreement::SetId
  base::OpKind kind = base::OpKind::Allreduce;
};

class Submissions {
 public:
  void add(Submitted s) { last_[count_++ % last_.size()] = std::move(s); }
  uint64_t count() const { return count_; }
  // Newest first.
  template <typename F>
  void for_each(F&& f) const {
    for (uint64_t i = count_; i > 0 && i + last_.size() > count_; --i) f(last_[(i - 1) % last_.size()]);
  }

 private:
  std::array<Submitted, 16> last_;
  uint64_t count_ = 0;
};

// What the engine asks the binding about the program that runs: the engine itself knows no Python.

class Program {
 public:
  virtual ~Program() = default;
  // The line of a call site. Any thread; waits for no lock of the program.
  virtual Place place_of(base::CallSite site) const = 0;
  // All threads with their Python frames, innermost first, and full paths: name, is_main and frames. Waits for the GIL,
  // possibly for long. Nothing when the interpreter ends.
  virtual std::optional<std::vector<Thread>> threads() const = 0;
  // Whether a file belongs to the engine's own packages, or to a library. The rest is the user's program.
  virtual bool is_own(const std::string& file) const = 0;
  virtual bool is_library(const std::string& file) const = 0;
};

// A rank's snapshot as the text of a SNAPSHOT message. The size is bounded. Any thread.
std::string encode(const Snapshot& snapshot);
// Throws WireError.
Snapshot decode(std::string_view text);
// The same fields as JSON, for reports and `hvd doctor`.
base::Json json_of(const Snapshot& snapshot);

}  // namespace hvd::watch
