// Why a rank does not submit what the others wait for. See stall.h.
#include <algorithm>
#include <array>
#include <string_view>

#include "engine/observe/stall.h"
#include "engine/types/operations.h"

namespace hvd::observe {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string at(const Place& place) {
  if (!place.known()) return "";
  return " at " + text_of(place) + (place.source.empty() ? "" : ": " + place.source);
}

const Snapshot* snapshot_of(const StallFacts& facts, int32_t rank) {
  const auto found = facts.snapshots.find(rank);
  return found == facts.snapshots.end() ? nullptr : &found->second;
}

const Submission* waits_for(const Snapshot& s, const Stall& stall) {
  for (const Submission& w : s.waiting)
    if (w.name == stall.name && w.process_set == stall.process_set) return &w;
  return nullptr;
}

// The submission of a rank that waits, with a known place if any rank has one.
const Submission* waiter(const StallFacts& facts, const Stall& stall) {
  const Submission* found = nullptr;
  for (int32_t r : stall.waiting) {
    const Snapshot* s = snapshot_of(facts, r);
    const Submission* w = s ? waits_for(*s, stall) : nullptr;
    if (w && (!found || (!found->place.known() && w->place.known()))) found = w;
  }
  return found;
}

// What the main thread waits for, by the library's frames above the user's line, and by the line itself.
struct Wait {
  Cause cause;
  const char* verb;
};

Wait by_library(const Thread& main) {
  const size_t end = main.site < 0 ? main.frames.size() : static_cast<size_t>(main.site);
  for (size_t i = 0; i < end; ++i) {
    const Place& f = main.frames[i];
    if (main.site < 0 && f.file.ends_with("threading.py") && f.function == "_shutdown")
      return {Cause::Ended, "has reached the end of its program and waits for its other threads"};
  }
  for (size_t i = end; i-- > 0;) {  // the outermost says most
    const Place& f = main.frames[i];
    if (has(f.file, "/utils/data/") || has(f.file, "data_loader") || has(f.file, "dataloader"))
      return {Cause::Waits, "is in its data loader"};
    if (f.file.ends_with("queue.py") || f.file.ends_with("multiprocessing/queues.py"))
      return {Cause::Waits, "waits for a queue"};
    if (has(f.file, "concurrent/futures/")) return {Cause::Waits, "waits for a future"};
    if (f.file.ends_with("subprocess.py")) return {Cause::Waits, "waits for a child process"};
    if (has(f.file, "multiprocessing/")) return {Cause::Waits, "waits for another process"};
    if (f.file.ends_with("threading.py") && f.function == "join")
      return {Cause::Lock, "waits for the end of a thread (Thread.join)"};
    if (f.file.ends_with("threading.py") && has(f.function, "wait"))
      return {Cause::Lock, "waits for another thread (a condition, event or barrier)"};
    if (f.file.ends_with("threading.py")) return {Cause::Lock, "waits for a lock"};
    if (f.file.ends_with("socket.py") || f.file.ends_with("ssl.py")) return {Cause::Waits, "waits for a connection"};
  }
  return {Cause::Stands, ""};
}

Wait by_source(std::string_view line) {
  if (has(line, "sleep(")) return {Cause::Sleep, "sleeps"};
  const bool with = line.starts_with("with ") || line.starts_with("async with ");
  const bool names_a_lock =
      has(line, "lock") || has(line, "Lock") || has(line, "mutex") || has(line, "sema") || has(line, "cond");
  if (has(line, ".acquire(") || (with && names_a_lock)) return {Cause::Lock, "waits for a lock"};
  if (has(line, ".join(") && !has(line, "hvd.join(") && !has(line, "\".join(") && !has(line, "'.join("))
    return {Cause::Lock, "waits for the end of a thread"};
  if (has(line, "input(")) return {Cause::Waits, "waits for input"};
  return {Cause::Stands, ""};
}

std::string percent(double share) { return std::to_string(static_cast<int>(share * 100 + 0.5)) + " %"; }

// What the program of a rank does that waits for no operation.
Diagnosis of_program(const Snapshot& s, const std::string& who) {
  const Threads& p = s.program;
  const Thread* main = p.main();
  Diagnosis d;
  if (!main || main->frames.empty()) {
    d.doing = p.note.empty() ? "runs no Python code that can be shown" : "cannot be shown: " + p.note;
    return d;
  }
  const Place& place = *main->place();
  const std::string lock = p.lock_held ? " (code of an extension keeps Python's lock)" : "";
  Wait wait = by_library(*main);
  const bool idle = !p.moved && p.busy < 0.3;
  if (wait.cause == Cause::Stands && idle && main->site == 0) wait = by_source(place.source);
  if (wait.cause == Cause::Ended || (idle && wait.cause != Cause::Stands)) {
    d.cause = wait.cause;
    d.doing = std::string(wait.verb) + at(place) + lock;
    if (d.cause == Cause::Lock)
      d.sentence = who + " is in a deadlock: its main thread waits for a lock or a thread that does not come.";
    else if (d.cause == Cause::Sleep)
      d.sentence = who + " sleeps.";
    else if (d.cause == Cause::Ended)
      d.sentence = who + " has finished its program; only threads of it still run.";
    else
      d.sentence = who + " is held up by something else: it " + wait.verb + ".";
    return d;
  }
  if (!idle) {
    d.cause = Cause::Works;
    d.doing = "works" + at(place) + " (busy for " + percent(p.busy) + " of the time" +
              (p.moved && p.before.known() && !(p.before == place) ? "; was at " + text_of(p.before) + " before" : "") +
              ")" + lock;
    d.sentence = who + " is slow: it runs on, and may still come to the operation.";
    return d;
  }
  d.doing = "stands" + at(place) + lock;
  if (p.lock_held) d.sentence = who + " is inside of an extension, which keeps Python's lock.";
  return d;
}

std::string under(const Place& place) {
  if (place.condition.empty()) return "";
  return " Line " + std::to_string(place.line) + " stands under a condition on the rank: " + place.condition +
         " (line " + std::to_string(place.condition_line) + ").";
}

bool came_by(const Snapshot& s, const Stall& stall, const Place& place) {
  return std::any_of(s.last.begin(), s.last.end(), [&](const Submission& x) {
    return (x.name == stall.name && x.process_set == stall.process_set) || (place.known() && x.place == place);
  });
}

bool has_submitted(const Snapshot& s, const std::string& name, int32_t process_set) {
  return std::any_of(s.last.begin(), s.last.end(),
                     [&](const Submission& x) { return x.name == name && x.process_set == process_set; });
}

// A rank that waits for the stalled operation has submitted this one before.
bool is_known_to_waiters(const StallFacts& facts, const Stall& stall, const Submission& x) {
  return std::any_of(stall.waiting.begin(), stall.waiting.end(), [&](int32_t r) {
    const Snapshot* s = snapshot_of(facts, r);
    return s && has_submitted(*s, x.name, x.process_set);
  });
}

// The rank waits for another operation than the stalled one.
Diagnosis of_waiting(const StallFacts& facts, const Snapshot& s, const Stall& stall, const Submission* other,
                     const std::string& who) {
  const Submission& own = s.waiting.front();
  Diagnosis d;
  d.doing = "waits for " + own.name + " since " + seconds(own.age_s) + at(own.place);
  const Place there = other ? other->place : Place{};
  const bool same_line = there.known() && own.place.known() && there == own.place && own.operation == stall.operation;
  if (same_line && is_known_to_waiters(facts, stall, own) && !has_submitted(s, stall.name, stall.process_set)) {
    d.cause = Cause::SomeRanks;
    d.sentence = who + " has made no call for " + stall.name + " at " + text_of(there) + ", and has come there again " +
                 "with " + own.name + ", which the others have called before. Do some ranks have a parameter, or a " +
                 "call, that other ranks lack?";
    return d;
  }
  if (same_line) {
    d.cause = Cause::OtherName;
    d.sentence = "The ranks give different names to the operation at " + text_of(there) + ": " + stall.name + " and " +
                 own.name + ". A name must be equal on all ranks; does it contain the rank, an address or a time?";
    return d;
  }
  const std::string places = there.known() && own.place.known() ? " The others are at " + text_of(there) + ", " + who +
                                                                      " is at " + text_of(own.place) + "."
                                                                : "";
  if (came_by(s, stall, there)) {
    d.cause = Cause::FewerSteps;
    d.sentence = who + " has made fewer steps than the others: it came by this call before and has gone on to " +
                 own.name + "." + places + " Do all ranks have the same number of batches? (hvd.join() is for ranks " +
                 "that have fewer.)";
    return d;
  }
  d.cause = Cause::OtherCall;
  d.conditional = !there.condition.empty();
  const std::string condition = under(there) + (there.condition == own.place.condition ? "" : under(own.place));
  d.sentence = "The ranks make different calls, or make them in another order: some wait for " + stall.name + ", " +
               who + " waits for " + own.name + "." + places + condition;
  return d;
}

}  // namespace

const char* name_of(Cause cause) {
  constexpr std::array names{"no_answer", "error", "other_name", "fewer_steps", "other_call", "joined", "ended",
                             "lock",      "sleep", "waits",      "works",       "stands",     "copies", "some_ranks"};
  return names[static_cast<size_t>(cause)];
}

Diagnosis diagnose(const StallFacts& facts, size_t of, int32_t rank) {
  const Stall& stall = facts.stalls[of];
  const std::string who = "rank " + std::to_string(rank);
  const Snapshot* s = snapshot_of(facts, rank);
  Diagnosis d;
  if (!s) {
    if (std::find(facts.asked.begin(), facts.asked.end(), rank) == facts.asked.end()) {
      d.doing = "was not asked what it does";
      return d;
    }
    d.cause = Cause::NoAnswer;
    d.doing = "does not answer";
    const auto process = facts.processes.find(rank);
    const bool known = process != facts.processes.end() && !process->second.empty();
    d.sentence = "The engine of " + who + " does not answer: " +
                 (known ? process->second
                        : "its process is stopped, or a thread of it is inside a call of a backend (its own log names "
                          "that call)") +
                 ".";
    return d;
  }
  const Submission* own = waits_for(*s, stall);
  if (own && own->deferred) {
    d.cause = Cause::Copies;
    d.doing = "has called it " + seconds(own->age_s) + " ago" + at(own->place) + ", and copies its data from a device";
    d.sentence = "The device of " + who + " has not produced the data yet.";
    return d;
  }
  const Submission* other = waiter(facts, stall);
  if (s->joined_s >= 0) {
    d.cause = Cause::Joined;
    d.doing = "waits in join() since " + seconds(s->joined_s);
  } else if (!s->waiting.empty()) {
    d = of_waiting(facts, *s, stall, other, who);
  } else {
    d = of_program(*s, who);
    // Without a better reason: the call may depend on the rank. That of a message does in any case.
    const bool parted = stall.operation != types::op_name(types::OpKind::Send) &&
                        (d.cause == Cause::Stands || d.cause == Cause::Works || d.cause == Cause::Sleep);
    if (parted && other && !other->place.condition.empty() && !came_by(*s, stall, other->place)) {
      d.cause = Cause::OtherCall;
      d.sentence = "The call at " + text_of(other->place) + " depends on the rank." + under(other->place) +
                   " Every rank of the process set must make it.";
    }
  }
  // An old error was got over.
  if (!s->error.empty() && d.cause != Cause::Joined && s->error_age_s < 2 * stall.age_s + 30) {
    d.cause = Cause::Error;
    d.sentence = "An operation failed on " + who + " " + seconds(s->error_age_s) + " ago, and its program went on: \"" +
                 s->error + "\" An exception that is caught must be handled on all ranks alike.";
  }
  return d;
}

}  // namespace hvd::observe
