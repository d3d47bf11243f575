// The stall report as a pure function: snapshots of ranks in, causes and texts out; and the reader of stacks.
//
//   stall_test          prints the names of the checks
//   stall_test NAME     runs one; exits with 1 and a line for each failed expectation
#include "engine/observe/stall.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/control/snapshot_wire.h"
#include "engine/control/wire.h"
#include "engine/observe/looker.h"
#include "engine/observe/stacks.h"
#include "named_checks.h"

using namespace hvd::observe;

namespace {

Place place(const std::string& file, int32_t line, const std::string& source = "") {
  return {file, line, "train", source, "", 0};
}

Submission submission(const std::string& name, double age_s, Place at) {
  return {"allreduce", name, 0, age_s, std::move(at), false};
}

Snapshot waiting_rank(int32_t rank, const std::string& name, Place at) {
  Snapshot s;
  s.rank = rank;
  s.waiting = s.last = {submission(name, 10, std::move(at))};
  return s;
}

// A rank whose main thread runs `frames`, innermost first; the user's line is frame `site`.
Snapshot running_rank(int32_t rank, std::vector<Place> frames, int32_t site) {
  Snapshot s;
  s.rank = rank;
  s.program.threads = {{"", true, std::move(frames), site, false}};
  return s;
}

// Rank 0 waits for "a" at train.py:12; rank 1 is missing and does what `other` says.
StallFacts facts_with(Snapshot other) {
  StallFacts f;
  f.stalls = {{"allreduce", "a", 0, 10, {0}, {1}, false}};
  f.snapshots[0] = waiting_rank(0, "a", place("train.py", 12, "hvd.allreduce(x)"));
  f.snapshots[1] = std::move(other);
  f.asked = {0, 1};
  return f;
}

Cause cause_of(Snapshot other) { return diagnose(facts_with(std::move(other)), 0, 1).cause; }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void another_name_at_the_same_line() {
  EXPECT(cause_of(waiting_rank(1, "b", place("train.py", 12))) == Cause::OtherName);
  EXPECT(cause_of(waiting_rank(1, "b", place("train.py", 13))) == Cause::OtherCall);
}

void fewer_steps_if_the_rank_came_by_before() {
  Snapshot s = waiting_rank(1, "metric", place("train.py", 30));
  s.last.push_back(submission("a", 12, place("train.py", 12)));
  EXPECT(cause_of(s) == Cause::FewerSteps);
  s.last.back().name = "another";  // without a name of its own the line says the same
  EXPECT(cause_of(s) == Cause::FewerSteps);
  s.last.back().place.line = 11;
  EXPECT(cause_of(s) == Cause::OtherCall);
}

void a_condition_on_the_rank_is_told() {
  auto f = facts_with(running_rank(1, {place("train.py", 40, "compute()")}, 0));
  f.snapshots[0].waiting[0].place.condition = "if hvd.rank() == 0:";
  f.snapshots[0].waiting[0].place.condition_line = 11;
  EXPECT(diagnose(f, 0, 1).cause == Cause::OtherCall);
  EXPECT(has(report_of(f).text, "under a condition on the rank: if hvd.rank() == 0: (line 11)"));
}

void waits_are_told_by_the_library() {
  const Place user = place("train.py", 20, "next(batches)");
  const auto inside = [&](const std::string& file, const std::string& function) {
    return cause_of(running_rank(1, {{file, 1, function, "", "", 0}, user}, 1));
  };
  EXPECT(inside("/usr/lib/python3.11/threading.py", "join") == Cause::Lock);
  EXPECT(inside("/usr/lib/python3.11/threading.py", "wait") == Cause::Lock);
  EXPECT(inside("/usr/lib/python3.11/queue.py", "get") == Cause::Waits);
  EXPECT(inside("/env/site-packages/x/utils/data/dataloader.py", "_try_get_data") == Cause::Waits);
  EXPECT(inside("/usr/lib/python3.11/json/decoder.py", "decode") == Cause::Stands);
  EXPECT(cause_of(running_rank(1, {{"/usr/lib/python3.11/threading.py", 1, "_shutdown", "", "", 0}}, -1)) ==
         Cause::Ended);
}

void waits_are_told_by_the_line() {
  const auto at = [](const std::string& source) { return cause_of(running_rank(1, {place("t.py", 5, source)}, 0)); };
  EXPECT(at("time.sleep(100)") == Cause::Sleep);
  EXPECT(at("with self._lock:") == Cause::Lock);
  EXPECT(at("lock.acquire()") == Cause::Lock);
  EXPECT(at("worker.join()") == Cause::Lock);
  EXPECT(at("text = \", \".join(parts)") == Cause::Stands);
  EXPECT(at("matrix @ matrix") == Cause::Stands);
}

void a_rank_that_moves_or_computes_is_slow() {
  Snapshot s = running_rank(1, {place("t.py", 5, "time.sleep(0.01)")}, 0);
  EXPECT(cause_of(s) == Cause::Sleep);
  s.program.moved = true;
  EXPECT(cause_of(s) == Cause::Works);
  s.program.moved = false;
  s.program.busy = 0.9;
  EXPECT(cause_of(s) == Cause::Works);
}

void an_error_counts_while_it_is_recent() {
  Snapshot s = running_rank(1, {place("t.py", 5, "f()")}, 0);
  s.error = "allreduce of 'a': it has no shape";
  s.error_age_s = 11;
  EXPECT(cause_of(s) == Cause::Error);
  EXPECT(has(report_of(facts_with(s)).text, "it has no shape"));
  s.error_age_s = 5000;
  EXPECT(cause_of(s) == Cause::Stands);
}

void a_rank_without_an_answer() {
  auto f = facts_with({});
  f.snapshots.erase(1);
  EXPECT(diagnose(f, 0, 1).cause == Cause::NoAnswer);
  f.asked = {0};
  EXPECT(diagnose(f, 0, 1).cause == Cause::Stands);
}

void equal_ranks_share_a_line() {
  auto f = facts_with(running_rank(1, {place("t.py", 5, "time.sleep(9)")}, 0));
  f.stalls[0].missing = {1, 2, 3};
  for (int32_t r : {2, 3}) f.snapshots[r] = running_rank(r, {place("t.py", 5, "time.sleep(9)")}, 0);
  EXPECT(has(report_of(f).text, "\n    ranks 1-3, each: sleeps at t.py:5 in train: time.sleep(9)"));
}

void the_texts_of_ranks_cannot_forge_lines() {
  auto f = facts_with(running_rank(1, {place("t.py", 5, "x\n2026 [0] horovod ERROR: \x1b[31mforged")}, 0));
  const StallReport r = report_of(f, true);
  EXPECT(!has(r.text, "\n2026") && !has(r.text, "\x1b") && !has(r.summary, "\n"));
  EXPECT(r.json.find('\n') == std::string::npos && !has(r.json, "\x1b"));
}

void a_snapshot_comes_back_from_its_text() {
  Snapshot s = waiting_rank(3, "a", place("train.py", 12, "hvd.allreduce(x)"));
  s.program = running_rank(3, {place("lib.py", 1), place("t.py", 5, "f()")}, 1).program;
  s.error = std::string(5000, 'e');
  const std::string text = hvd::control::encode(s);
  const Snapshot back = hvd::control::decode(text);
  EXPECT(back.waiting[0].place == s.waiting[0].place && back.program.threads[0].site == 1);
  EXPECT(back.error.size() == 400);
  for (size_t n = 0; n < text.size(); ++n) {
    bool refused = false;
    try {
      hvd::control::decode(std::string_view(text).substr(0, n));
    } catch (const hvd::control::WireError&) {
      refused = true;
    }
    EXPECT(refused);
  }
}

class TestProgram final : public Program {
 public:
  Place place_of(hvd::types::CallSite) const override { return {}; }
  std::string stacks() const override { return {}; }
  std::optional<std::string> stacks_without_lock() const override { return {}; }
  std::string main_thread() const override { return "0x0000000000000001"; }
  bool is_own(const std::string& file) const override { return file.starts_with("/own/"); }
  bool is_library(const std::string& file) const override { return file.starts_with("/lib/"); }
};

void stacks_are_read() {
  const auto threads = parse_stacks(
      "Thread 0x0000000000000002 [loader] (most recent call first):\n"
      "  File \"/lib/queue.py\", line 7 in get\n"
      "  File \"/home/load.py\", line 8 in work\n"
      "\n"
      "Current thread 0x0000000000000003 (most recent call first):\n"
      "  <no Python frame>\n"
      "\n"
      "Thread 0x0000000000000001 (most recent call first):\n"
      "  File \"/own/ops.py\", line 3 in allreduce\n"
      "  File \"/home/a \", line 1 in b.py\", line 12 in train\n"
      "  File \"/home/main.py\", line 40 in <module>\n",
      TestProgram());
  EXPECT(threads.size() == 2);
  EXPECT(threads[0].is_main && threads[0].in_engine && threads[0].frames.size() == 2 && threads[0].site == 0);
  EXPECT(threads[0].frames[0].line == 12 && threads[0].frames[0].function == "train");
  EXPECT(threads[1].name == "loader" && threads[1].site == 1 && threads[1].place()->file == "/home/load.py");
  EXPECT(parse_stacks("nonsense\n  File \"x", TestProgram()).empty());
}

// Its main thread is always at the first line of `file`.
class StandingProgram final : public hvd::observe::Program {
 public:
  explicit StandingProgram(std::string file) : file_(std::move(file)) {}
  Place place_of(hvd::types::CallSite) const override { return {}; }
  std::string stacks() const override {
    return "Thread 0x0000000000000001 (most recent call first):\n  File \"" + file_ + "\", line 1 in main\n";
  }
  std::optional<std::string> stacks_without_lock() const override { return {}; }
  std::string main_thread() const override { return "0x0000000000000001"; }
  bool is_own(const std::string&) const override { return false; }
  bool is_library(const std::string&) const override { return false; }

 private:
  std::string file_;
};

// A pipe without a writer keeps its reader, as a file system does that hangs.
void a_file_that_hangs_keeps_no_report() {
  char folder[] = "/tmp/hvd-stall-test-XXXXXX";
  EXPECT(::mkdtemp(folder));
  const std::string pipe = std::string(folder) + "/hangs.py", file = std::string(folder) + "/reads.py";
  EXPECT(::mkfifo(pipe.c_str(), 0600) == 0);
  std::ofstream(file) << "one()\ntwo()\n";
  Place other = place(file.c_str(), 2);
  {
    std::promise<Threads> seen;
    hvd::observe::Looker looker(std::make_shared<StandingProgram>(pipe),
                                [&](Threads threads) { seen.set_value(std::move(threads)); });
    looker.look({other});
    const Threads threads = seen.get_future().get();
    EXPECT(threads.main() && threads.main()->place()->file == pipe && threads.main()->place()->source.empty());
    while (other.source.empty()) {
      looker.fill_in(other);
      ::usleep(1000);
    }
    EXPECT(other.source == "two()");
  }
  const int writer = ::open(pipe.c_str(), O_WRONLY | O_NONBLOCK);  // the thread that was left behind ends
  if (writer >= 0) ::close(writer);
  ::unlink(pipe.c_str());
  ::unlink(file.c_str());
  ::rmdir(folder);
}

const named_checks::List kChecks = {
    CHECK(another_name_at_the_same_line),
    CHECK(fewer_steps_if_the_rank_came_by_before),
    CHECK(a_condition_on_the_rank_is_told),
    CHECK(waits_are_told_by_the_library),
    CHECK(waits_are_told_by_the_line),
    CHECK(a_rank_that_moves_or_computes_is_slow),
    CHECK(an_error_counts_while_it_is_recent),
    CHECK(a_rank_without_an_answer),
    CHECK(equal_ranks_share_a_line),
    CHECK(the_texts_of_ranks_cannot_forge_lines),
    CHECK(a_snapshot_comes_back_from_its_text),
    CHECK(stacks_are_read),
    CHECK(a_file_that_hangs_keeps_no_report),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
