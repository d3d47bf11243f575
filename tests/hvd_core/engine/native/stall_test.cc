// The stall report as a pure function: snapshots of ranks in, texts out; and the reader of stacks.
//
//   stall_test          prints the names of the checks
//   stall_test NAME     runs one; exits with 1 and a line for each failed expectation
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/agreement/wire.h"
#include "engine/watch/snapshot.h"
#include "engine/watch/stack_sampler.h"
#include "engine/watch/stall_report.h"
#include "named_checks.h"

using namespace hvd::watch;

namespace {

Place place(const std::string& file, int32_t line, const std::string& source = "") {
  return {file, line, "train", source, ""};
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

std::string doing(const StallFacts& f) { return doing_of(f, f.stalls[0], 1); }
std::string doing(Snapshot other) { return doing(facts_with(std::move(other))); }

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void a_rank_that_waits_for_another_operation() {
  auto f = facts_with(waiting_rank(1, "b", place("train.py", 13)));
  f.stalls.push_back({"allreduce", "b", 0, 9, {1}, {0}, false});
  const std::string text = report_of(f).text;
  EXPECT(has(text, "rank 0 waits for a since 10.0 s at train.py:12 in train: hvd.allreduce(x)"));
  EXPECT(has(text, "rank 1 waits for b since 9.0 s at train.py:13 in train"));
  EXPECT(has(text, "It has not submitted a.") && has(text, "It has not submitted b."));
}

void the_caller_of_a_helper_is_told() {
  Place helper = place("helper.py", 3, "return hvd.allreduce(x)");
  helper.caller = "train.py:40 in main";
  const std::string text = report_of(facts_with(waiting_rank(1, "b", helper))).text;
  EXPECT(has(text, "at helper.py:3 in train (called at train.py:40 in main): return hvd.allreduce(x)"));
}

// The text guesses nothing: of these it used to say that ranks give different names, or make fewer steps.
void no_cause_is_guessed() {
  Snapshot s = waiting_rank(1, "metric", place("train.py", 30));
  s.last.push_back(submission("a", 12, place("train.py", 12)));
  for (const Snapshot& other : {s, waiting_rank(1, "b", place("train.py", 12))}) {
    const StallReport r = report_of(facts_with(other), true);
    for (const std::string& text : {r.text, r.summary, r.json})
      EXPECT(!has(text, "ikely cause") && !has(text, "different names") && !has(text, "fewer"));
  }
}

void what_a_program_does_is_told_by_its_stack() {
  const Place user = place("train.py", 20, "next(batches)");
  Snapshot s = running_rank(1, {{"/usr/lib/python3.11/queue.py", 171, "get", "", ""}, user}, 1);
  EXPECT(has(doing(s),
             "stands still at train.py:20 in train: next(batches), inside of "
             "/usr/lib/python3.11/queue.py:171 in get (busy for 0 % of the time)"));
  s.program.busy = 0.9;
  EXPECT(has(doing(s), "runs at train.py:20") && has(doing(s), "busy for 90 % of the time"));
  s.program.busy = 0;
  s.program.moved = true;
  s.program.before = place("train.py", 19);
  EXPECT(has(doing(s), "runs at train.py:20") && has(doing(s), "was at train.py:19 in train before"));
}

void a_program_that_keeps_the_gil() {
  Snapshot s = running_rank(1, {place("t.py", 5, "f()")}, 0);
  EXPECT(has(report_of(facts_with(s), true).json, "\"stacks_read\": \"with the GIL\""));
  s.program = {.gil_held = true};
  EXPECT(has(doing(s), "stands still in code that keeps the GIL (busy for 0 % of the time"));
  EXPECT(has(report_of(facts_with(s), true).json, "\"stacks_read\": \"not: the GIL was not released\""));
}

void an_error_is_told_while_it_is_recent() {
  Snapshot s = running_rank(1, {place("t.py", 5, "f()")}, 0);
  s.error = "allreduce of 'a': it has no shape";
  s.error_age_s = 11;
  EXPECT(
      has(report_of(facts_with(s)).text, "failed 11.0 s ago, and its program went on: \"allreduce of 'a': it has no"));
  s.error_age_s = 5000;
  EXPECT(!has(report_of(facts_with(s)).text, "it has no shape"));
}

void a_rank_without_an_answer() {
  auto f = facts_with({});
  f.snapshots.erase(1);
  EXPECT(has(doing(f), "does not answer: its process is stopped, or"));
  f.processes[1] = "its process is stopped, by SIGSTOP";
  EXPECT(doing(f) == "does not answer: its process is stopped, by SIGSTOP");
  f.asked = {0};
  EXPECT(doing(f) == "was not asked what it does");
}

void each_other_rank_has_one_line() {
  auto f = facts_with(running_rank(1, {place("t.py", 5, "f()")}, 0));
  f.stalls[0].waiting = {0, 2};
  f.snapshots[2] = waiting_rank(2, "a", place("train.py", 12, "hvd.allreduce(x)"));
  f.asked = {0, 1, 2};
  const StallReport r = report_of(f);
  EXPECT(r.lines.size() == 2);
  EXPECT(has(r.lines.at(1), "This rank has not submitted a, for which ranks 0, 2 wait since 10.0 s; it stands still"));
  EXPECT(has(r.lines.at(2), "This rank waits for a since 10.0 s at train.py:12") &&
         has(r.lines.at(2), "Rank 1 has not submitted it. The report on all ranks is in the log of rank 0."));
  for (const auto& [rank, line] : r.lines) EXPECT(!has(line, "\n"));
}

void equal_ranks_share_a_line() {
  auto f = facts_with(running_rank(1, {place("t.py", 5, "time.sleep(9)")}, 0));
  f.stalls[0].missing = {1, 2, 3};
  for (int32_t r : {2, 3}) f.snapshots[r] = running_rank(r, {place("t.py", 5, "time.sleep(9)")}, 0);
  EXPECT(has(report_of(f).text, "\n    ranks 1-3, each: stands still at t.py:5 in train: time.sleep(9)"));
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
  const std::string text = hvd::watch::encode(s);
  const Snapshot back = hvd::watch::decode(text);
  EXPECT(back.waiting[0].place == s.waiting[0].place && back.program.threads[0].site == 1);
  EXPECT(back.error.size() == 400);
  for (size_t n = 0; n < text.size(); ++n) {
    bool refused = false;
    try {
      hvd::watch::decode(std::string_view(text).substr(0, n));
    } catch (const hvd::agreement::WireError&) {
      refused = true;
    }
    EXPECT(refused);
  }
}

class TestProgram : public Program {
 public:
  explicit TestProgram(std::vector<Thread> threads = {}) : threads_(std::move(threads)) {}
  Place place_of(hvd::base::CallSite) const override { return {}; }
  std::optional<std::vector<Thread>> threads() const override { return threads_; }
  bool is_own(const std::string& file) const override { return file.starts_with("/own/"); }
  bool is_library(const std::string& file) const override { return file.starts_with("/lib/"); }

 private:
  const std::vector<Thread> threads_;
};

void a_report_shows_the_frames_of_the_program() {
  const Thread loader{.name = "loader", .frames = {{"/lib/queue.py", 7, "get"}, {"/home/load.py", 8, "work"}}};
  const Thread main{
      .is_main = true,
      .frames = {{"/own/ops.py", 3, "allreduce"}, {"/home/b.py", 12, "train"}, {"/home/main.py", 40, "<module>"}}};
  const auto threads = shown_threads({loader, {.name = "of an extension"}, main}, TestProgram());
  EXPECT(threads.size() == 2);
  EXPECT(threads[0].is_main && threads[0].in_engine && threads[0].frames.size() == 2 && threads[0].site == 0);
  EXPECT(threads[0].frames[0].line == 12 && threads[0].frames[0].function == "train");
  EXPECT(threads[0].frames[0].caller == "/home/main.py:40" && threads[1].frames[1].caller.empty());
  EXPECT(threads[1].name == "loader" && threads[1].site == 1 && threads[1].place()->file == "/home/load.py");
}

Thread thread_at(const std::string& file) { return {.is_main = true, .frames = {{file, 1, "main"}}}; }

// A pipe without a writer keeps its reader, as a file system does that hangs.
void a_file_that_hangs_keeps_no_report() {
  char folder[] = "/tmp/hvd-stall-test-XXXXXX";
  EXPECT(::mkdtemp(folder));
  const std::string pipe = std::string(folder) + "/hangs.py", file = std::string(folder) + "/reads.py";
  EXPECT(::mkfifo(pipe.c_str(), 0600) == 0);
  std::ofstream(file) << "one()\n  two()\n";
  std::vector<Submission> waiting{submission("a", 1, place(file, 2))};
  {
    StackSampler sampler(std::make_shared<TestProgram>(std::vector{thread_at(pipe)}));
    sampler.start(waiting);
    EXPECT(!sampler.wait(std::chrono::seconds(2)));
    const Threads threads = sampler.take(waiting);
    EXPECT(threads.main() && threads.main()->place()->file == pipe && threads.main()->place()->source.empty());
    EXPECT(waiting[0].place.source == "two()");
  }
  const int writer = ::open(pipe.c_str(), O_WRONLY | O_NONBLOCK);  // the thread that was left behind ends
  if (writer >= 0) ::close(writer);
  ::unlink(pipe.c_str());
  ::unlink(file.c_str());
  ::rmdir(folder);
}

// Its stacks come when the pipe can be read.
struct HangingProgram final : TestProgram {
  int pipe[2];
  HangingProgram() { EXPECT(::pipe(pipe) == 0); }
  std::optional<std::vector<Thread>> threads() const override {
    char byte;
    EXPECT(::read(pipe[0], &byte, 1) == 1);
    return std::vector{thread_at("/home/main.py")};
  }
};

void a_program_that_keeps_the_gil_keeps_no_report() {
  const auto program = std::make_shared<HangingProgram>();
  std::vector<Submission> none;
  StackSampler sampler(program);
  sampler.start(none);
  EXPECT(!sampler.wait(std::chrono::milliseconds(50)));
  EXPECT(sampler.take(none).gil_held && sampler.take(none).threads.empty());
  EXPECT(::write(program->pipe[1], "....", 4) == 4);
  sampler.start(none);  // served by the sample that waited
  EXPECT(sampler.wait(std::chrono::seconds(60)));
  EXPECT(!sampler.take(none).gil_held && sampler.take(none).threads.size() == 1);
}

const named_checks::List kChecks = {
    CHECK(a_rank_that_waits_for_another_operation),
    CHECK(the_caller_of_a_helper_is_told),
    CHECK(no_cause_is_guessed),
    CHECK(what_a_program_does_is_told_by_its_stack),
    CHECK(a_program_that_keeps_the_gil),
    CHECK(an_error_is_told_while_it_is_recent),
    CHECK(a_rank_without_an_answer),
    CHECK(each_other_rank_has_one_line),
    CHECK(equal_ranks_share_a_line),
    CHECK(the_texts_of_ranks_cannot_forge_lines),
    CHECK(a_snapshot_comes_back_from_its_text),
    CHECK(a_report_shows_the_frames_of_the_program),
    CHECK(a_file_that_hangs_keeps_no_report),
    CHECK(a_program_that_keeps_the_gil_keeps_no_report),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
