// See stall.h.
#include "engine/observe/stall.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <utility>

#include "engine/observe/json.h"
#include "engine/observe/printable.h"
#include "engine/types/rank_list.h"

namespace hvd::observe {
namespace {

constexpr size_t kNames = 6, kRanks = 16, kLast = 4, kOtherThreads = 3;

// Texts of other ranks have no line breaks here.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  return printable(std::move(text));
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + types::rank_list(ranks);
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

std::string place_text(const Place& p) {
  if (!p.known()) return "";
  return " at " + text_of(p) + (p.source.empty() ? "" : ": " + p.source);
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
  return text + " since " + seconds(stall.age_s) + (w ? one_line(place_text(w->place)) : "");
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

std::string other_threads(const Snapshot& s) {
  std::string text;
  size_t shown = 0;
  for (const Thread& t : s.program.threads) {
    if (t.is_main || t.site < 0 || shown++ == kOtherThreads) continue;
    text += "\n      Its thread" + (t.name.empty() ? "" : " " + one_line(t.name)) + " is" +
            one_line(place_text(*t.place()));
  }
  return text;
}

const Submission* submission_of(const Snapshot& s, const Stall& stall) {
  for (const Submission& w : s.waiting)
    if (w.name == stall.name && w.process_set == stall.process_set) return &w;
  return nullptr;
}

// What each rank does, once: a rank that waits for one operation may be missing in another.
std::string ranks_paragraph(const StallFacts& facts) {
  Lines waiting, missing;
  std::map<int32_t, size_t> misses, waits;  // by rank: its first stall of each kind
  for (size_t i = 0; i < facts.stalls.size(); ++i) {
    for (int32_t r : facts.stalls[i].missing) misses.emplace(r, i);
    for (int32_t r : facts.stalls[i].waiting) waits.emplace(r, i);
  }
  for (const auto& [r, i] : waits) {
    const auto s = facts.snapshots.find(r);
    const bool known = s != facts.snapshots.end();
    std::string further;
    if (const auto m = misses.find(r); m != misses.end())
      further = "\n      It has not submitted " + one_line(facts.stalls[m->second].name) + "." +
                (known ? last_text(s->second) + other_threads(s->second) : "");
    const Submission* w = known ? submission_of(s->second, facts.stalls[i]) : nullptr;
    waiting.add(r, waiting_text(facts, facts.stalls[i], w), further, known ? where(s->second) : "");
  }
  for (const auto& [r, i] : misses) {
    if (waits.contains(r)) continue;
    const Diagnosis d = diagnose(facts, i, r);
    const auto s = facts.snapshots.find(r);
    const bool known = s != facts.snapshots.end();
    missing.add(r, one_line(d.doing), known ? last_text(s->second) + other_threads(s->second) : "",
                known ? where(s->second) : "");
  }
  return "What the ranks do:" + waiting.text() + missing.text();
}

// The likely causes, once each.
std::vector<std::pair<Cause, std::string>> causes_of(const StallFacts& facts) {
  std::vector<Diagnosis> found;
  std::set<int32_t> seen;
  for (size_t i = 0; i < facts.stalls.size(); ++i)
    for (int32_t r : facts.stalls[i].missing)
      if (seen.insert(r).second) found.push_back(diagnose(facts, i, r));
  // Two ranks that wait for each other's operations tell one thing twice; a better reason says it all. Of an error that
  // several ranks had, the rank that made the mistake tells.
  const auto parted = [](const Diagnosis& d) { return d.cause == Cause::OtherCall || d.cause == Cause::OtherName; };
  const auto order_of = [&](const Diagnosis& d) {
    if (d.cause == Cause::Error)
      return d.sentence.find("failed before it was submitted on") == std::string::npos ? 0 : 1;
    return parted(d) ? (d.conditional ? 2 : 3) : 1;
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](const Diagnosis& a, const Diagnosis& b) { return order_of(a) < order_of(b); });
  bool told = false, error_told = false;
  std::vector<std::pair<Cause, std::string>> causes;
  for (const Diagnosis& d : found) {
    const std::string text = one_line(capital(d.sentence));
    const auto same = [&](const auto& c) { return c.second == text; };
    if (text.empty() || std::any_of(causes.begin(), causes.end(), same)) continue;
    if ((parted(d) && told) || (d.cause == Cause::Error && error_told)) continue;
    told |= parted(d) || d.cause == Cause::FewerSteps || d.cause == Cause::SomeRanks || d.cause == Cause::Error;
    error_told |= d.cause == Cause::Error;
    causes.emplace_back(d.cause, text);
  }
  return causes;
}

std::string summary_of(const StallFacts& facts) {
  const Stall& oldest = *std::max_element(facts.stalls.begin(), facts.stalls.end(),
                                          [](const Stall& a, const Stall& b) { return a.age_s < b.age_s; });
  const size_t of = static_cast<size_t>(&oldest - facts.stalls.data());
  std::string text = "operations were stalled for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (" +
                     seconds(facts.abort_s) + "). " + capital(ranks_text(oldest.waiting)) + " waited for " +
                     oldest.name + set_text(facts, oldest.process_set) + " since " + seconds(oldest.age_s);
  for (int32_t r : oldest.waiting) {
    const auto s = facts.snapshots.find(r);
    const Submission* w = s == facts.snapshots.end() ? nullptr : submission_of(s->second, oldest);
    if (!w || !w->place.known()) continue;
    text += place_text(w->place);
    break;
  }
  text += ".";
  size_t shown = 0;
  for (int32_t r : oldest.missing) {
    if (shown++ == 4) {
      text += " And " + std::to_string(oldest.missing.size() - 4) + " more ranks were missing.";
      break;
    }
    text += " Rank " + std::to_string(r) + " did not submit it: it " + diagnose(facts, of, r).doing + ".";
  }
  return one_line(text);
}

Json json_of(const Place& p) {
  Json j = Json::object();
  if (!p.known()) return j;
  j.set("file", p.file).set("line", p.line).set("function", p.function).set("source", p.source);
  return j;
}

Json json_of(const std::vector<Submission>& all) {
  Json list = Json::array();
  for (const Submission& x : all)
    list.push(Json::object()
                  .set("operation", x.operation)
                  .set("name", x.name)
                  .set("process_set", x.process_set)
                  .set("age_s", x.age_s)
                  .set("place", json_of(x.place)));
  return list;
}

Json json_of(const Snapshot& s) {
  Json threads = Json::array();
  for (const Thread& t : s.program.threads) {
    Json frames = Json::array();
    for (const Place& p : t.frames) frames.push(json_of(p));
    threads.push(Json::object().set("name", t.name).set("main", t.is_main).set("site", t.site).set("frames", frames));
  }
  return Json::object()
      .set("rank", s.rank)
      .set("host", s.host)
      .set("pid", s.pid)
      .set("submissions", static_cast<int64_t>(s.submissions))
      .set("waiting", json_of(s.waiting))
      .set("last", json_of(s.last))
      .set("joined_s", s.joined_s)
      .set("error", s.error)
      .set("busy", s.program.busy)
      .set("moved", s.program.moved)
      .set("python_lock_held", s.program.lock_held)
      .set("threads", threads);
}

std::string whole_json(const StallFacts& facts, const std::vector<std::pair<Cause, std::string>>& causes) {
  Json stalls = Json::array();
  for (size_t i = 0; i < facts.stalls.size(); ++i) {
    const Stall& s = facts.stalls[i];
    Json missing = Json::array();
    for (int32_t r : s.missing) {
      const Diagnosis d = diagnose(facts, i, r);
      missing.push(Json::object().set("rank", r).set("cause", name_of(d.cause)).set("doing", d.doing));
    }
    Json waiting = Json::array();
    for (int32_t r : s.waiting) waiting.push(Json(r));
    stalls.push(Json::object()
                    .set("operation", s.operation)
                    .set("name", s.name)
                    .set("process_set", s.process_set)
                    .set("age_s", s.age_s)
                    .set("waiting", waiting)
                    .set("missing", missing));
  }
  Json likely = Json::array();
  for (const auto& [cause, text] : causes) likely.push(Json::object().set("cause", name_of(cause)).set("text", text));
  Json ranks = Json::array();
  for (const auto& [rank, s] : facts.snapshots) ranks.push(json_of(s));
  return Json::object().set("stalls", stalls).set("causes", likely).set("ranks", ranks).text();
}

}  // namespace

StallReport report_of(const StallFacts& facts, bool with_json) {
  StallReport report;
  for (const Stall& s : facts.stalls) report.too_long |= s.too_long;
  report.text = first_paragraph(facts);
  const auto causes = causes_of(facts);
  for (const auto& [cause, sentence] : causes) report.text += "\nLikely cause: " + sentence;
  report.text += "\n" + ranks_paragraph(facts);
  if (facts.since_report_s > 0)
    report.text += "\nThis was reported before, after " + seconds(facts.since_report_s) + ".";
  report.summary = summary_of(facts);
  if (with_json) report.json = whole_json(facts, causes);
  return report;
}

}  // namespace hvd::observe
