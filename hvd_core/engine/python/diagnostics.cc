// What tools see: lines of the log, descriptions of backends, snapshots of ranks (`hvd doctor`).

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/text.h"
#include "engine/calls/request.h"
#include "engine/plugins/backend.h"
#include "engine/python/bindings.h"
#include "engine/python/gil.h"
#include "engine/recorder/event.h"
#include "engine/watch/snapshot.h"
#include "engine/watch/stall_report.h"
#include "hvd/backend_abi.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using namespace py::literals;

py::object take_line() {
  std::optional<base::LogLine> line;
  {
    ReleaseGil released;
    line = base::take_line();
  }
  if (!line) return py::none();
  return py::make_tuple(static_cast<int32_t>(line->level), line->text);
}

using plugins::Backend;

// Without the GIL: the library's entry function may take long, and a backend in Python needs it.
std::shared_ptr<Backend> load(const std::string& name, const std::string& path) {
  ReleaseGil released;
  return Backend::load_library(path, name);
}

struct Cap {
  uint64_t bit;
  const char* name;
};

constexpr Cap kCaps[] = {
    {HVD_CAP_STREAM, "STREAM"},           {HVD_CAP_REQUEST, "REQUEST"},
    {HVD_CAP_VECTORED, "VECTORED"},       {HVD_CAP_GROUP_SAME, "GROUP_SAME"},
    {HVD_CAP_GROUP_MIXED, "GROUP_MIXED"}, {HVD_CAP_ABORT, "ABORT"},
    {HVD_CAP_ONE_HOST, "ONE_HOST"},       {HVD_CAP_MEM_HOST, "MEM_HOST"},
    {HVD_CAP_MEM_DEVICE, "MEM_DEVICE"},   {HVD_CAP_PROCESS_LOCAL, "PROCESS_LOCAL"},
};

std::vector<std::string> cap_names(uint64_t caps) {
  std::vector<std::string> names;
  for (const Cap& cap : kCaps) {
    if (caps & cap.bit) names.emplace_back(cap.name);
    caps &= ~cap.bit;
  }
  for (int bit = 0; bit < 64; ++bit) {  // a newer backend may declare more: they are shown by number
    if (caps >> bit & 1) names.push_back("bit " + std::to_string(bit));
  }
  return names;
}

// The device types whose memory its communicators read and write; host memory is "cpu".
std::vector<std::string> device_types(const Backend& backend) {
  std::vector<std::string> types;
  if (!backend.has_comm()) return types;
  if (backend.comm_caps() & HVD_CAP_MEM_DEVICE) {
    std::istringstream text(backend.comm_api()->device_types);
    for (std::string type; std::getline(text, type, ',');) {
      if (!type.empty()) types.push_back(type);
    }
  }
  const bool named = std::find(types.begin(), types.end(), "cpu") != types.end();
  if ((backend.comm_caps() & HVD_CAP_MEM_HOST) && !named) types.emplace_back("cpu");
  return types;
}

struct Place {
  const char* table;
  const char* slot;
  size_t offset;
};

const Place kPlaces[] = {
#define HVD_SLOT(table, name, since, need) {#table, #name, offsetof(hvd_##table##_api, name)},
#include "hvd/backend_slots.inc"
};

// A slot beyond the end of an older table is absent, like an empty slot.
py::dict slots_of(const hvd_hdr* table, const char* which) {
  py::dict slots;
  for (const Place& place : kPlaces) {
    if (std::strcmp(place.table, which) != 0) continue;
    const bool reached = table->struct_size >= place.offset + sizeof(void*);
    const auto* at = reinterpret_cast<const char*>(table) + place.offset;
    slots[place.slot] = reached && *reinterpret_cast<void* const*>(at) != nullptr;
  }
  return slots;
}

py::dict inspect(const std::string& name, const std::string& path) {
  const auto backend = load(name, path);
  py::list options;
  for (const plugins::Option& option : backend->options()) {
    options.append(py::dict("name"_a = option.name, "type"_a = option.type, "fallback"_a = option.fallback,
                            "range"_a = option.range, "doc"_a = option.doc));
  }
  py::dict slots;
  if (backend->has_device()) slots["device"] = slots_of(&backend->device_api()->hdr, "device");
  if (backend->has_comm()) slots["comm"] = slots_of(&backend->comm_api()->hdr, "comm");
  return py::dict("name"_a = backend->name(), "tag"_a = backend->tag(), "version"_a = backend->version(),
                  "vendor_lib"_a = backend->vendor_lib(), "abi"_a = py::make_tuple(HVD_ABI_MAJOR, backend->abi_minor()),
                  "device_type"_a = backend->device_type(), "device_types"_a = device_types(*backend),
                  "caps"_a = cap_names(backend->comm_caps()), "options"_a = options, "slots"_a = slots);
}

py::dict query(const std::string& name, const std::string& path, int32_t coll, int32_t dtype, int32_t op) {
  const auto in_range = [](int32_t value, int32_t count) { return value >= 0 && value < count; };
  if (!in_range(coll, HVD_COLL_COUNT) || !in_range(dtype, HVD_DTYPE_COUNT) || !in_range(op, HVD_REDOP_COUNT)) {
    throw py::value_error("query_backend(): no such collective, type or reduction: " + std::to_string(coll) + ", " +
                          std::to_string(dtype) + ", " + std::to_string(op));
  }
  const auto backend = load(name, path);
  // One buffer with one element for every rank, as the engine asks. Addresses are not used.
  const uint64_t one = 1;
  const hvd_buf none{};
  hvd_coll_args args;
  std::memset(&args, 0, sizeof(args));
  args.coll = coll;
  args.dtype = dtype;
  args.op = op;
  args.prescale = args.postscale = 1.0;
  if (coll != HVD_BARRIER) {
    args.n_bufs = 1;
    args.in = args.out = &none;
    args.counts = &one;
  }
  hvd_coll_caps caps{};
  try {
    ReleaseGil released;
    caps = backend->query(args);
  } catch (const plugins::BackendError& e) {
    // A backend may call a question invalid (the average of booleans, for example). Then it does not serve it.
    if (e.code != HVD_E_INVALID) throw;
  }
  return py::dict("support"_a = caps.support, "score"_a = caps.score, "alignment"_a = caps.alignment,
                  "max_count"_a = caps.max_count);
}

std::optional<std::string> fact(const std::string& name, const std::string& path, const std::string& key) {
  ReleaseGil released;
  return Backend::load_library(path, name)->fact(key);
}

using watch::Snapshot;
using watch::Stall;

// A rank whose list of waiting operations has so many may wait for more.
constexpr size_t kFull = 16;

Snapshot decoded(std::string_view data) {
  try {
    return watch::decode(data);
  } catch (const std::exception& e) {
    throw calls::InvalidRequest(std::string("not a snapshot of a rank: ") + e.what());
  }
}

std::string snapshot_json(const py::bytes& data) { return watch::json_of(decoded(std::string_view(data))).text(); }

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
  watch::StallFacts facts;
  facts.warn_s = min_age_s;
  for (const auto& data : snapshots) {
    Snapshot s = decoded(std::string_view(data));
    facts.asked.push_back(s.rank);
    facts.snapshots[s.rank] = std::move(s);
  }
  facts.process_sets = process_sets;
  facts.stalls = stalls_of(facts.snapshots, process_sets, min_age_s);
  if (facts.stalls.empty()) return {};
  const auto report = watch::report_of(facts, true);
  return {base::printable(report.text), report.json};
}

}  // namespace

void bind_diagnostics(py::module_& m) {
  m.def("keep_log_lines", &base::keep_lines, py::arg("on"),
        "While it is on, lines of the engine's log are kept for take_log_line() and not written to stderr.");
  m.def("keep_log_lines_no_more", &base::keep_lines_no_more, "For a forked child: keep_log_lines(False) at once.");
  m.def("take_log_line", &take_line,
        "(index of the level, text) of the oldest line that is kept; waits for one. None when keep_log_lines is off "
        "and no line is left.");
  m.def(
      "printable", [](const py::bytes& text) { return base::printable(std::string(text)); }, py::arg("text"),
      "`text`, of which the sender is not trusted, as text that is safe to show; see engine/base/text.h.");

  m.def("inspect_backend", &inspect, py::arg("name"), py::arg("path"),
        "What the library at `path` says about itself; it stays loaded. Raises BackendLoadError, "
        "BackendOpenError.");
  m.def(
      "query_backend", &query, py::arg("name"), py::arg("path"), py::arg("coll"), py::arg("dtype"), py::arg("op"),
      "How a collective would be served, by the backend interface's numbers: a dict of support (0 unserved, 1 native, "
      "2 emulated), score, alignment in bytes and max_count (0: no limit).");
  m.def("backend_fact", &fact, py::arg("name"), py::arg("path"), py::arg("key"),
        "A fact that the library at `path` tells about itself as it runs now; None when it does not know it, or not "
        "yet. It stays loaded. Raises BackendLoadError, BackendOpenError.");
  py::dict kinds;
#define X(id, number, name) kinds[py::int_(number)] = #name;
  HVD_EVENT_KINDS(X)
#undef X
  m.attr("event_kinds") = kinds;  // of the flight recorder: {number: name}

  m.def("snapshot_json", &snapshot_json, py::arg("data"), "The snapshot of a rank as a JSON object.");
  m.def("stall_report", &stall_report, py::arg("snapshots"), py::arg("process_sets"), py::arg("min_age_s"));
}

}  // namespace hvd::python
