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

constexpr size_t kNames = 6, kRanks = 16, kLast = 4, kOtherThreads = 3;
// A main thread that uses less of the time stands still.
constexpr double kBusy = 0.3;

// Texts of other ranks have no line breaks here.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return base::printable(std::move(text));
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + base::rank_list(ranks);
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

std::string set_text(const StallFacts& facts, int32_t number) {
  if (number == 0) return "";
  const auto set = facts.process_sets.find(number);
  if (set == facts.process_sets.end()) return " (process set " + std::to_string(number) + ")";
  return " (process set " + std::to_string(number) + ": " + ranks_text(set->second) + ")";
}

std::string where(const Snapshot& s) {
  if (s.host.empty()) return "";
  return " (host " + s.host + (s.pid > 0 ? ", pid " + std::to_string(s.pid) : "") + ")";
}

const Submission* submission_of(const Snapshot& s, const Stall& stall) {
  for (const Submission& w : s.waiting)
    if (w.name == stall.name && w.process_set == stall.process_set) return &w;
  return nullptr;
}

const Snapshot* snapshot_of(const StallFacts& facts, int32_t rank) {
  const auto found = facts.snapshots.find(rank);
  return found == facts.snapshots.end() ? nullptr : &found->second;
}

// Horovod's wording, which programs look for: the missing ranks with their names.
std::string first_paragraph(const StallFacts& facts) {
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

// Lines that are equal but for the rank are one line.
class Lines {
 public:
  void add(int32_t rank, const std::string& rest, const std::string& further, const std::string& alone) {
    for (Line& l : lines_) {
      if (l.rest == rest && l.further == further) {
        l.ranks.push_back(rank);
        return;
      }
    }
    lines_.push_back({{rank}, rest, further, alone});
  }
  std::string text() const {
    std::string text;
    size_t shown = 0;
    for (const Line& l : lines_) {
      if (shown++ == kRanks) {
        text += "\n    and " + std::to_string(lines_.size() - kRanks) + " more";
        break;
      }
      text += "\n    " + ranks_text(l.ranks) + (l.ranks.size() == 1 ? l.alone + " " : ", each: ") + l.rest + l.further;
    }
    return text;
  }

 private:
  struct Line {
    std::vector<int32_t> ranks;
    std::string rest, further, alone;
  };
  std::vector<Line> lines_;
};

std::string waiting_text(const StallFacts& facts, const Stall& stall, const Submission* w) {
  std::string text = "waits for " + one_line(stall.name) + set_text(facts, stall.process_set);
  if (w && w->deferred) text += ", which copies its data from a device,";
  return text + " since " + seconds(stall.age_s) + (w ? one_line(at(w->place)) : "");
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

// What else is known about a rank that misses in `stall`.
std::string further_text(const Snapshot* s, const Stall& stall) {
  return s ? error_text(*s, stall) + last_text(*s) + other_threads(*s) : "";
}

// By rank: its first stall of each kind. A rank that waits for one operation may be missing in another.
struct Parts {
  std::map<int32_t, size_t> misses, waits;

  explicit Parts(const StallFacts& facts) {
    for (size_t i = 0; i < facts.stalls.size(); ++i) {
      for (int32_t r : facts.stalls[i].missing) misses.emplace(r, i);
      for (int32_t r : facts.stalls[i].waiting) waits.emplace(r, i);
    }
  }
};

// What each rank does, once.
std::string ranks_paragraph(const StallFacts& facts, const Parts& parts) {
  Lines waiting, missing;
  for (const auto& [r, i] : parts.waits) {
    const Snapshot* s = snapshot_of(facts, r);
    std::string further;
    if (const auto m = parts.misses.find(r); m != parts.misses.end()) {
      const Stall& missed = facts.stalls[m->second];
      further = "\n      It has not submitted " + one_line(missed.name) + "." + further_text(s, missed);
    }
    const Submission* w = s ? submission_of(*s, facts.stalls[i]) : nullptr;
    waiting.add(r, waiting_text(facts, facts.stalls[i], w), further, s ? where(*s) : "");
  }
  for (const auto& [r, i] : parts.misses) {
    if (parts.waits.contains(r)) continue;
    const Snapshot* s = snapshot_of(facts, r);
    missing.add(r, one_line(doing_of(facts, i, r)), further_text(s, facts.stalls[i]), s ? where(*s) : "");
  }
  return "What the ranks do:" + waiting.text() + missing.text();
}

// The part of one rank, for its own log.
std::string line_of(const StallFacts& facts, const Parts& parts, int32_t rank) {
  const auto verb = [](const std::vector<int32_t>& ranks, const char* one, const char* more) {
    return std::string(ranks.size() == 1 ? one : more);
  };
  std::string text;
  const auto waits = parts.waits.find(rank), misses = parts.misses.find(rank);
  if (waits != parts.waits.end()) {
    const Stall& stall = facts.stalls[waits->second];
    const Snapshot* s = snapshot_of(facts, rank);
    text += "This rank " + waiting_text(facts, stall, s ? submission_of(*s, stall) : nullptr) + ". " +
            capital(ranks_text(stall.missing)) + verb(stall.missing, " has", " have") + " not submitted it. ";
  }
  if (misses != parts.misses.end()) {
    const Stall& stall = facts.stalls[misses->second];
    text += "This rank has not submitted " + one_line(stall.name) + set_text(facts, stall.process_set) +
            ", for which " + ranks_text(stall.waiting) + verb(stall.waiting, " waits", " wait") + " since " +
            seconds(stall.age_s);
    if (waits == parts.waits.end()) text += "; it " + one_line(doing_of(facts, misses->second, rank));
    text += ". ";
  }
  return text + "The report on all ranks is in the log of rank 0.";
}

std::string summary_of(const StallFacts& facts) {
  const Stall& oldest = *std::max_element(facts.stalls.begin(), facts.stalls.end(),
                                          [](const Stall& a, const Stall& b) { return a.age_s < b.age_s; });
  const size_t of = static_cast<size_t>(&oldest - facts.stalls.data());
  std::string text = "operations were stalled for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (" +
                     seconds(facts.abort_s) + "). " + capital(ranks_text(oldest.waiting)) + " waited for " +
                     oldest.name + set_text(facts, oldest.process_set) + " since " + seconds(oldest.age_s);
  for (int32_t r : oldest.waiting) {
    const Snapshot* s = snapshot_of(facts, r);
    const Submission* w = s ? submission_of(*s, oldest) : nullptr;
    if (!w || !w->place.known()) continue;
    text += at(w->place);
    break;
  }
  text += ".";
  size_t shown = 0;
  for (int32_t r : oldest.missing) {
    if (shown++ == 4) {
      text += " And " + std::to_string(oldest.missing.size() - 4) + " more ranks were missing.";
      break;
    }
    text += " Rank " + std::to_string(r) + " did not submit it: it " + doing_of(facts, of, r) + ".";
  }
  return one_line(text);
}

std::string whole_json(const StallFacts& facts) {
  base::Json stalls = base::Json::array();
  for (size_t i = 0; i < facts.stalls.size(); ++i) {
    const Stall& s = facts.stalls[i];
    base::Json missing = base::Json::array();
    for (int32_t r : s.missing) missing.push(base::Json::object().set("rank", r).set("doing", doing_of(facts, i, r)));
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

}  // namespace

std::string doing_of(const StallFacts& facts, size_t of, int32_t rank) {
  const Stall& stall = facts.stalls[of];
  const Snapshot* s = snapshot_of(facts, rank);
  if (!s) {
    if (std::find(facts.asked.begin(), facts.asked.end(), rank) == facts.asked.end())
      return "was not asked what it does";
    const auto process = facts.processes.find(rank);
    const bool known = process != facts.processes.end() && !process->second.empty();
    return "does not answer: " + (known ? process->second
                                        : "its process is stopped, or a thread of it is inside a call of a backend "
                                          "(its own log names that call)");
  }
  if (const Submission* own = submission_of(*s, stall); own && own->deferred)
    return "has called it " + seconds(own->age_s) + " ago" + at(own->place) +
           ", and its device has not produced the data yet";
  if (s->joined_s >= 0) return "waits in join() since " + seconds(s->joined_s);
  if (s->waiting.empty()) return doing_of_program(s->program);
  const Submission& own = s->waiting.front();
  return "waits for " + own.name + " since " + seconds(own.age_s) + at(own.place);
}

StallReport report_of(const StallFacts& facts, bool with_json) {
  StallReport report;
  for (const Stall& s : facts.stalls) report.too_long |= s.too_long;
  const Parts parts(facts);
  report.text = first_paragraph(facts) + "\n" + ranks_paragraph(facts, parts);
  if (facts.since_report_s > 0)
    report.text += "\nThis was reported before, after " + seconds(facts.since_report_s) + ".";
  for (int32_t r : facts.asked)
    if (r != 0 && (parts.waits.contains(r) || parts.misses.contains(r))) report.lines[r] = line_of(facts, parts, r);
  report.summary = summary_of(facts);
  if (with_json) report.json = whole_json(facts);
  return report;
}

}  // namespace hvd::watch
