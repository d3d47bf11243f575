// What one rank does at a moment: operations that wait, the last submissions, the last error, and what its threads run.
//
// One structure for all readers: stall reports print the snapshots of several ranks beside each other. The engine fills
// it (engine/stalls.cc), watch/snapshot.h carries it. Plain values; any thread.
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

namespace hvd::watch {

// A line of the program. Texts come from the rank as they are: printable() before they are shown.
struct Place {
  std::string file;  // relative to the rank's working directory, if it is below
  int32_t line = 0;  // 0: not known
  std::string function;
  std::string source;  // the text of the line, if the file can be read
  std::string caller;  // of a line of the user's program: the line of it that called this function, as text

  bool known() const { return !file.empty(); }
  bool operator==(const Place& o) const {
    return file == o.file && line == o.line && function == o.function && caller == o.caller;
  }
};

struct Submission {
  std::string operation;    // "allreduce"
  std::string name;         // of the request: "allreduce.loss"
  int32_t process_set = 0;  // the number that users see
  double age_s = 0;
  Place place;
  bool deferred = false;  // waits for a copy of its data from a device
};

struct Thread {
  std::string name;  // empty: not known
  bool is_main = false;
  std::vector<Place> frames;  // innermost first; inner frames of the engine's own packages are left out
  int32_t site = -1;          // index of the innermost frame of the user's program
  bool in_engine = false;     // an operation of the engine was called in `frames[0]`, and has not returned

  const Place* place() const {
    if (site >= 0) return &frames[static_cast<size_t>(site)];
    return frames.empty() ? nullptr : &frames[0];
  }
};

// The threads of a rank's program at two moments.
struct Threads {
  std::vector<Thread> threads;  // the main thread first
  std::string note;             // why threads are missing
  bool lock_held = false;       // the GIL was not to be had: the stacks, if any, are those of a copy of the process
  bool moved = false;           // the main thread was elsewhere the first time
  Place before;                 // where, if it had moved
  double busy = 0;              // share of the time between the two for which the main thread computed, or was ready to

  const Thread* main() const { return !threads.empty() && threads[0].is_main ? &threads[0] : nullptr; }
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
  Threads program;
};

// "train.py:12 in main"
std::string text_of(const Place& place);
// " at train.py:12 in main (called at train.py:40): loss.backward()", empty if the place is not known
std::string at(const Place& place);
// "10.2 s"
std::string seconds(double s);

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
  // What all threads run, as text in the format of Python's faulthandler. Waits for the program's lock, possibly for
  // long. Empty when the program ends.
  virtual std::string stacks() const = 0;
  // The same without the lock, from a copy of the process (stack_sampler.h), for code of an extension that does not
  // give the lock up. Nothing if that fails, and where the interpreter has no function for it.
  virtual std::optional<std::string> stacks_without_lock() const = 0;
  // The main thread, as the text of stacks() writes it: "0x00007f...".
  virtual std::string main_thread() const = 0;
  // Whether a file belongs to the engine's own packages, or to a library. The rest is the user's program.
  virtual bool is_own(const std::string& file) const = 0;
  virtual bool is_library(const std::string& file) const = 0;
};

// A rank's snapshot as the text of a TOLD message. The size is bounded. Any thread.

std::string encode(const watch::Snapshot& snapshot);
// Throws WireError.
watch::Snapshot decode(std::string_view text);

}  // namespace hvd::watch
