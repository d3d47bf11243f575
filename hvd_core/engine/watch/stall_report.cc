// See stall_report.h.
#include "engine/watch/stall_report.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "engine/base/rank_list.h"
#include "engine/base/text.h"

namespace hvd::watch {
namespace {

constexpr size_t kNames = 6, kRanks = 16, kLast = 4, kOtherThreads = 3, kSummaryRanks = 4;
// A main thread that uses less of the time stands still.
constexpr double kBusy = 0.3;

// Texts of other ranks have no line breaks here.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return base::printable(std::move(text));
}

// "rank 1", "ranks 0, 2", followed by the verb in its form for one rank or for several.
std::string ranks_text(const std::vector<int32_t>& ranks, const char* one = "", const char* more = "") {
  return (ranks.size() == 1 ? "rank " : "ranks ") + base::rank_list(ranks) + (ranks.size() == 1 ? one : more);
}

std::string capital(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// "60", "0.5"
std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", v);
  return text;
}

const Submission* submission_of(const Snapshot* s, const Stall& stall) {
  if (!s) return nullptr;
  for (const Submission& w : s->waiting)
    if (w.name == stall.name && w.process_set == stall.process_set) return &w;
  return nullptr;
}

// Horovod's wording, which programs look for: the missing ranks with their names.
std::string horovods_paragraph(const StallFacts& facts) {
  struct Missing {
    std::vector<std::string> names;
    bool too_long = false;
  };
  std::map<int32_t, Missing> by_rank;
  for (const Stall& s : facts.stalls) {
    for (int32_t r : s.missing) {
      by_rank[r].names.push_back(s.name);
      by_rank[r].too_long |= s.too_long;
    }
  }
  std::string text =
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
      "for remainder of ranks for more than " +
      number(facts.warn_s) +
      " seconds. This may indicate that different ranks are trying to submit different tensors or that only subset of "
      "ranks is submitting tensors, which will cause deadlock. Missing ranks:";
  for (const auto& [rank, m] : by_rank) {
    text += "\n" + std::to_string(rank) + (m.too_long ? "!" : "") + ": [";
    for (size_t i = 0; i < m.names.size() && i < kNames; ++i) text += (i ? ", " : "") + one_line(m.names[i]);
    text += m.names.size() > kNames ? " ...]" : "]";
  }
  return text;
}

// The newest first; calls of one name and line in a row stand there once.
std::string last_text(const Snapshot& s) {
  if (s.last.empty()) return "\n      It has submitted nothing.";
  std::string text = "It submitted last: ";
  size_t shown = 0;
  for (size_t i = 0; i < s.last.size() && shown < kLast; ++shown) {
    const Submission& x = s.last[i];
    size_t same = i + 1;
    while (same < s.last.size() && s.last[same].name == x.name && s.last[same].place == x.place) ++same;
    text += (shown ? ", " : "") + x.name + " " + seconds(x.age_s) + " ago" +
            (x.place.known() ? " (" + text_of(x.place) + ")" : "");
    if (same - i > 1) text += ", " + std::to_string(same - i) + " times";
    i = same;
  }
  return "\n      " + one_line(text);
}

// An old error was got over.
std::string error_text(const Snapshot& s, const Stall& stall) {
  if (s.error.empty() || s.error_age_s >= 2 * stall.age_s + 30) return "";
  return "\n      An operation of it failed " + seconds(s.error_age_s) + " ago, and its program went on: \"" +
         one_line(s.error) + "\"";
}

std::string other_threads(const Snapshot& s) {
  std::string text;
  size_t shown = 0;
  for (const Thread& t : s.program.threads) {
    if (t.is_main || t.site < 0 || shown++ == kOtherThreads) continue;
    text += "\n      Its thread" + (t.name.empty() ? "" : " " + one_line(t.name)) + " is" + one_line(at(*t.place()));
  }
  return text;
}

// What the program of a rank does that waits for no operation.
std::string doing_of_program(const Threads& p) {
  const Thread* main = p.main();
  const bool runs = p.moved || p.busy >= kBusy;
  const std::string busy = " (busy for " + std::to_string(static_cast<int>(p.busy * 100 + 0.5)) + " % of the time";
  if (p.gil_held)
    return std::string(runs ? "runs" : "stands still") + " in code that keeps the GIL" + busy +
           "; its stacks cannot be read, `py-spy dump --native` shows them)";
  if (!main || main->frames.empty())
    return p.note.empty() ? "runs no Python code that can be shown" : "cannot be shown: " + p.note;
  std::string text = (runs ? "runs" : "stands still") + at(*main->place());
  // The function of a library that the line has called says what it is about: a queue, a lock, a data loader.
  if (main->site > 0) text += ", inside of " + text_of(main->frames[static_cast<size_t>(main->site) - 1]);
  text += busy;
  if (p.moved && p.before.known() && !(p.before == *main->place())) text += "; was at " + text_of(p.before) + " before";
  return text + ")";
}

// One report.
class Writer {
 public:
  // A rank that waits for one operation may be missing in another. Its first stall of each kind is described.
  explicit Writer(const StallFacts& facts) : facts_(facts) {
    for (const Stall& s : facts.stalls) {
      for (int32_t r : s.missing) misses_.emplace(r, &s);
      for (int32_t r : s.waiting) waits_.emplace(r, &s);
    }
  }

  bool concerns(int32_t rank) const { return waits_.contains(rank) || misses_.contains(rank); }

  // What each rank does, once: first those that wait. Texts that are equal but for the rank are one.
  std::string ranks_paragraph() const {
    using Texts = std::vector<std::pair<std::string, std::vector<int32_t>>>;
    Texts waiting, missing;
    const auto add = [](Texts& texts, int32_t rank, const std::string& text) {
      const auto same = std::ranges::find(texts, text, [](const auto& t) { return t.first; });
      same == texts.end() ? texts.push_back({text, {rank}}) : same->second.push_back(rank);
    };
    for (const auto& [r, stall] : waits_) {
      const auto missed = misses_.find(r);
      add(waiting, r,
          waiting_text(r, *stall) + (missed == misses_.end()
                                         ? ""
                                         : "\n      It has not submitted " + one_line(missed->second->name) + "." +
                                               history(r, *missed->second)));
    }
    for (const auto& [r, stall] : misses_)
      if (!waits_.contains(r)) add(missing, r, one_line(doing_of(facts_, *stall, r)) + history(r, *stall));
    std::string text = "What the ranks do:";
    for (const Texts* texts : {&waiting, &missing}) {
      for (size_t i = 0; i < texts->size() && i < kRanks; ++i) {
        const auto& [what, ranks] = (*texts)[i];
        text += "\n    " + ranks_text(ranks) + (ranks.size() == 1 ? host_of(ranks[0]) + " " : ", each: ") + what;
      }
      if (texts->size() > kRanks) text += "\n    and " + std::to_string(texts->size() - kRanks) + " more";
    }
    return text;
  }

  // The part of one rank, for its own log.
  std::string line_of(int32_t rank) const {
    std::string text;
    const auto waits = waits_.find(rank), misses = misses_.find(rank);
    if (waits != waits_.end()) {
      const Stall& stall = *waits->second;
      text += "This rank " + waiting_text(rank, stall) + ". " + capital(ranks_text(stall.missing, " has", " have")) +
              " not submitted it. ";
    }
    if (misses != misses_.end()) {
      const Stall& stall = *misses->second;
      text += "This rank has not submitted " + named(stall) + ", for which " +
              ranks_text(stall.waiting, " waits", " wait") + " since " + seconds(stall.age_s);
      if (waits == waits_.end()) text += "; it " + one_line(doing_of(facts_, stall, rank));
      text += ". ";
    }
    return text + "The report on all ranks is in the log of rank 0.";
  }

  // About the oldest stall.
  std::string summary() const {
    const Stall& oldest = *std::ranges::max_element(facts_.stalls, {}, &Stall::age_s);
    std::string text = "operations were stalled for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (" +
                       seconds(facts_.abort_s) + "). " + capital(ranks_text(oldest.waiting)) + " waited for " +
                       named(oldest) + " since " + seconds(oldest.age_s);
    const auto known = std::ranges::find_if(oldest.waiting, [&](int32_t r) {
      const Submission* w = submission_of(facts_.snapshot_of(r), oldest);
      return w && w->place.known();
    });
    if (known != oldest.waiting.end()) text += at(submission_of(facts_.snapshot_of(*known), oldest)->place);
    text += ".";
    const size_t shown = std::min(oldest.missing.size(), kSummaryRanks);
    for (size_t i = 0; i < shown; ++i)
      text += " Rank " + std::to_string(oldest.missing[i]) + " did not submit it: it " +
              doing_of(facts_, oldest, oldest.missing[i]) + ".";
    if (oldest.missing.size() > shown)
      text += " And " + std::to_string(oldest.missing.size() - shown) + " more ranks were missing.";
    return one_line(text);
  }

 private:
  // "allreduce.loss (process set 1: ranks 0, 2)"
  std::string named(const Stall& stall) const {
    std::string text = one_line(stall.name);
    if (stall.process_set == 0) return text;
    const auto set = facts_.process_sets.find(stall.process_set);
    return text + " (process set " + std::to_string(stall.process_set) +
           (set == facts_.process_sets.end() ? "" : ": " + ranks_text(set->second)) + ")";
  }

  std::string host_of(int32_t rank) const {
    const Snapshot* s = facts_.snapshot_of(rank);
    if (!s || s->host.empty()) return "";
    return " (host " + s->host + (s->pid > 0 ? ", pid " + std::to_string(s->pid) : "") + ")";
  }

  std::string waiting_text(int32_t rank, const Stall& stall) const {
    const Submission* w = submission_of(facts_.snapshot_of(rank), stall);
    std::string text = "waits for " + named(stall);
    if (w && w->deferred) text += ", which copies its data from a device,";
    return text + " since " + seconds(stall.age_s) + (w ? one_line(at(w->place)) : "");
  }

  // What else is known about a rank that misses in `stall`.
  std::string history(int32_t rank, const Stall& stall) const {
    const Snapshot* s = facts_.snapshot_of(rank);
    return s ? error_text(*s, stall) + last_text(*s) + other_threads(*s) : "";
  }

  const StallFacts& facts_;
  std::map<int32_t, const Stall*> misses_, waits_;  // by rank
};

std::string whole_json(const StallFacts& facts) {
  base::Json stalls = base::Json::array();
  for (const Stall& s : facts.stalls) {
    base::Json missing = base::Json::array();
    for (int32_t r : s.missing) missing.push(base::Json::object().set("rank", r).set("doing", doing_of(facts, s, r)));
    base::Json waiting = base::Json::array();
    for (int32_t r : s.waiting) waiting.push(base::Json(r));
    stalls.push(base::Json::object()
                    .set("operation", s.operation)
                    .set("name", s.name)
                    .set("process_set", s.process_set)
                    .set("age_s", s.age_s)
                    .set("waiting", waiting)
                    .set("missing", missing));
  }
  base::Json ranks = base::Json::array();
  for (const auto& [rank, s] : facts.snapshots) ranks.push(json_of(s));
  return base::Json::object().set("stalls", stalls).set("ranks", ranks).text();
}

}  // namespace

std::string doing_of(const StallFacts& facts, const Stall& stall, int32_t rank) {
  const Snapshot* s = facts.snapshot_of(rank);
  if (!s) {
    if (std::find(facts.asked.begin(), facts.asked.end(), rank) == facts.asked.end())
      return "was not asked what it does";
    const auto process = facts.processes.find(rank);
    const bool known = process != facts.processes.end() && !process->second.empty();
    return "does not answer: " + (known ? process->second
                                        : "its process is stopped, or a thread of it is inside a call of a backend "
                                          "(its own log names that call)");
  }
  if (const Submission* own = submission_of(s, stall); own && own->deferred)
    return "has called it " + seconds(own->age_s) + " ago" + at(own->place) +
           ", and its device has not produced the data yet";
  if (s->joined_s >= 0) return "waits in join() since " + seconds(s->joined_s);
  if (s->waiting.empty()) return doing_of_program(s->program);
  const Submission& own = s->waiting.front();
  return "waits for " + own.name + " since " + seconds(own.age_s) + at(own.place);
}

StallReport report_of(const StallFacts& facts, bool with_json) {
  StallReport report;
  const Writer writer(facts);
  report.text = horovods_paragraph(facts) + "\n" + writer.ranks_paragraph();
  if (facts.since_report_s > 0)
    report.text += "\nThis was reported before, after " + seconds(facts.since_report_s) + ".";
  for (int32_t r : facts.asked)
    if (r != 0 && writer.concerns(r)) report.lines[r] = writer.line_of(r);
  report.summary = writer.summary();
  if (with_json) report.json = whole_json(facts);
  return report;
}

}  // namespace hvd::watch
