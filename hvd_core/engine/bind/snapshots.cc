// See snapshots.h.
#include "engine/bind/snapshots.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/bind/python_program.h"
#include "engine/control/snapshot_wire.h"
#include "engine/observe/printable.h"
#include "engine/observe/snapshot.h"
#include "engine/observe/stall.h"
#include "engine/queue/errors.h"

namespace py = pybind11;

namespace hvd::bind {
namespace {

using observe::Snapshot;
using observe::Stall;

// A rank whose list of waiting operations has so many may wait for more.
constexpr size_t kFull = 16;

std::string shown(const std::string& text) { return observe::printable(text); }

py::dict dict_of(const observe::Place& p) {
  py::dict d;
  d["place"] = p.known() ? shown(observe::text_of(p)) : "";
  d["source"] = shown(p.source);
  d["caller"] = shown(p.caller);
  return d;
}

py::list list_of(const std::vector<observe::Submission>& all) {
  py::list list;
  for (const auto& s : all) {
    py::dict d = dict_of(s.place);
    d["operation"] = shown(s.operation);
    d["name"] = shown(s.name);
    d["process_set"] = s.process_set;
    d["age_s"] = s.age_s;
    d["copies"] = s.deferred;
    list.append(std::move(d));
  }
  return list;
}

py::list list_of(const std::vector<observe::Thread>& threads) {
  py::list list;
  for (const auto& t : threads) {
    py::list frames;
    for (const auto& f : t.frames) frames.append(dict_of(f));
    py::dict d;
    d["name"] = shown(t.name);
    d["is_main"] = t.is_main;
    d["in_engine"] = t.in_engine;
    d["frames"] = std::move(frames);
    d["site"] = t.site;
    list.append(std::move(d));
  }
  return list;
}

Snapshot decoded(std::string_view data) {
  try {
    return control::decode(data);
  } catch (const std::exception& e) {
    throw queue::InvalidRequest(std::string("not a snapshot of a rank: ") + e.what());
  }
}

py::dict read_snapshot(const py::bytes& data) {
  const Snapshot s = decoded(std::string_view(data));
  py::dict d;
  d["rank"] = s.rank;
  d["host"] = shown(s.host);
  d["pid"] = s.pid;
  d["submissions"] = s.submissions;
  d["waiting"] = list_of(s.waiting);
  d["last"] = list_of(s.last);
  d["joined_s"] = s.joined_s;
  d["leaving"] = s.leaving;
  d["error"] = shown(s.error);
  d["error_age_s"] = s.error_age_s;
  d["threads"] = list_of(s.program.threads);
  d["note"] = shown(s.program.note);
  d["lock_held"] = s.program.lock_held;
  d["busy"] = s.program.busy;
  return d;
}

// Operations that some of these ranks wait for, and others of the set have not submitted, for `min_age_s` at least.
std::vector<Stall> stalls_of(const std::map<int32_t, Snapshot>& ranks,
                             const std::map<int32_t, std::vector<int32_t>>& process_sets, double min_age_s) {
  std::map<std::pair<int32_t, std::string>, Stall> found;
  for (const auto& [rank, s] : ranks)
    for (const auto& w : s.waiting) {
      if (w.deferred) continue;
      Stall& stall = found[{w.process_set, w.name}];
      stall.operation = w.operation;
      stall.name = w.name;
      stall.process_set = w.process_set;
      stall.age_s = std::max(stall.age_s, w.age_s);
      stall.waiting.push_back(rank);
    }
  std::vector<Stall> stalls;
  for (auto& [key, stall] : found) {
    const auto set = process_sets.find(stall.process_set);
    if (set == process_sets.end() || stall.age_s < min_age_s) continue;
    for (int32_t r : set->second) {
      const auto snapshot = ranks.find(r);
      const bool waits = std::find(stall.waiting.begin(), stall.waiting.end(), r) != stall.waiting.end();
      if (waits || snapshot == ranks.end() || snapshot->second.waiting.size() >= kFull) continue;
      stall.missing.push_back(r);
    }
    if (!stall.missing.empty()) stalls.push_back(std::move(stall));
  }
  std::sort(stalls.begin(), stalls.end(), [](const Stall& a, const Stall& b) { return a.age_s > b.age_s; });
  return stalls;
}

// (text, JSON) of the stall report of these ranks; empty texts if none waits for another.
std::pair<std::string, std::string> stall_report(const std::vector<py::bytes>& snapshots,
                                                 const std::map<int32_t, std::vector<int32_t>>& process_sets,
                                                 double min_age_s) {
  observe::StallFacts facts;
  facts.warn_s = min_age_s;
  for (const auto& data : snapshots) {
    Snapshot s = decoded(std::string_view(data));
    facts.asked.push_back(s.rank);
    facts.snapshots[s.rank] = std::move(s);
  }
  facts.process_sets = process_sets;
  facts.stalls = stalls_of(facts.snapshots, process_sets, min_age_s);
  if (facts.stalls.empty()) return {};
  const auto report = observe::report_of(facts, true);
  return {shown(report.text), report.json};
}

}  // namespace

void bind_snapshots(py::module_& m) {
  m.def("stacks_from_copy", &stacks_from_copy);  // for tests
  m.def("read_snapshot", &read_snapshot, py::arg("data"));
  m.def("stall_report", &stall_report, py::arg("snapshots"), py::arg("process_sets"), py::arg("min_age_s"));
}

}  // namespace hvd::bind
