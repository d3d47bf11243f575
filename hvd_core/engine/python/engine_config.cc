// See engine_config.h.
#include "engine/python/engine_config.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/threads.h"
#include "engine/plugins/host_api.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// A busy machine needs seconds to destroy what is in good order.
constexpr int64_t kLeastEndNs = 10'000'000'000;

// The store of a job of one process.
class LocalStore final : public plugins::Store {
 public:
  void set(const std::string& key, std::string_view value) override { values_[key] = value; }
  std::string get(const std::string& key, int64_t) override {
    auto it = values_.find(key);
    if (it == values_.end()) throw plugins::BackendError(HVD_E_TIMEOUT, 0, 0, "'" + key + "' is not in the store");
    return it->second;
  }
  int64_t add(const std::string& key, int64_t delta) override { return counters_[key] += delta; }
  void del(const std::string& key) override { values_.erase(key); }

 private:
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, int64_t> counters_;
};

int64_t ns_of(const py::handle& time, double unit_ns) { return static_cast<int64_t>(time.cast<double>() * unit_ns); }

LinkConfig link_of(const py::dict& d) {
  LinkConfig l;
  l.peer = d["peer"].cast<int32_t>();
  l.is_parent = d["is_parent"].cast<bool>();
  l.subtree = d["subtree"].cast<std::vector<int32_t>>();
  l.sock_fd = d["sock_fd"].cast<int>();
  l.key = d["key"].cast<std::string>();
  l.encrypted = d["encrypted"].cast<bool>();
  if (l.sock_fd >= 0) return l;
  l.slot = d["slot"].cast<uint32_t>();
  l.peer_bells = d["peer_bells"].cast<std::array<int, 2>>();
  l.guard_fd = d["guard_fd"].cast<int>();
  l.peer_pid = d["peer_pid"].cast<int32_t>();
  return l;
}

// (name, path), or None.
EngineConfig::Library library_of(const py::handle& pair) {
  if (pair.is_none()) return {};
  auto [name, path] = pair.cast<std::pair<std::string, std::string>>();
  return {name, path};
}

using Routes = std::array<EngineConfig::Library, HVD_COLL_COUNT>;

// {collective: (name, path) or None}
void read_routes(const py::handle& d, Routes& routes) {
  for (auto [coll, library] : d.cast<py::dict>()) routes.at(coll.cast<size_t>()) = library_of(library);
}

EngineConfig::DeviceConfig device_of(const py::dict& d) {
  EngineConfig::DeviceConfig c;
  c.type = d["type"].cast<std::string>();
  c.table = library_of(d["table"]);
  if (d.contains("within")) c.within = library_of(d["within"]);
  c.ordinal = d["ordinal"].cast<int32_t>();
  read_routes(d["routes"], c.routes);
  if (d.contains("choice")) c.choice = d["choice"].cast<std::string>();
  return c;
}

// A search by a function of Python, which answers with a device's configuration or None, and why there is none.
decltype(EngineConfig::find_device) search_by(py::function find) {
  // Freed with the GIL, by whichever thread lets go of the configuration last.
  const std::shared_ptr<py::function> kept(new py::function(std::move(find)), [](py::function* f) {
    const py::gil_scoped_acquire locked;
    delete f;
  });
  return [kept](const std::string& type) -> std::pair<std::optional<EngineConfig::DeviceConfig>, std::string> {
    const py::gil_scoped_acquire locked;
    const auto [found, why] = (*kept)(type).cast<std::pair<py::object, std::string>>();
    if (found.is_none()) return {std::nullopt, why};
    return {device_of(found.cast<py::dict>()), why};
  };
}

recorder::ObserverSettings observe_of(const py::dict& d) {
  recorder::ObserverSettings s;
  s.recorder = d["recorder"].cast<bool>();
  s.watched = d["watched"].cast<bool>();
  s.flight_folder = d["flight_folder"].cast<std::string>();
  s.job = d["job"].cast<std::string>();
  s.clock_offset_ns = d["clock_offset_ns"].cast<int64_t>();
  s.timeline_max_bytes = d["timeline_max_bytes"].cast<uint64_t>();
  if (auto path = d["timeline"].cast<std::string>(); !path.empty())
    s.timeline = recorder::TimelineSettings{std::move(path), d["timeline_mark_cycles"].cast<bool>(),
                                            d["timeline_all_ranks"].cast<bool>(), s.timeline_max_bytes};
  return s;
}

agreement::AutotuneConfig autotune_of(const py::dict& d, std::string& log) {
  agreement::AutotuneConfig c;
  c.on = true;
  c.threshold = d["threshold"].cast<bool>();
  c.delay = d["delay"].cast<bool>();
  c.warmup_samples = d["warmup_samples"].cast<uint32_t>();
  c.steps_per_sample = d["steps_per_sample"].cast<uint32_t>();
  c.max_samples = d["max_samples"].cast<uint32_t>();
  log = d["log"].cast<std::string>();
  return c;
}

}  // namespace

void read_choice(const py::dict& d, EngineConfig& c) {
  c.local_backend = library_of(d["local_backend"]);
  c.global_backend = library_of(d["global_backend"]);
  c.local_alone = d["local_alone"].cast<bool>();
  for (int coll : d["hierarchical"].cast<std::vector<int>>()) c.hierarchical.at(static_cast<size_t>(coll)) = true;
  for (auto x : d["devices"].cast<py::list>()) c.devices.push_back(device_of(x.cast<py::dict>()));
  c.devices_note = d["devices_note"].cast<std::string>();
  read_routes(d["host_routes"], c.host_routes);
}

EngineConfig config_of(const py::dict& d) {
  const auto settings = d["settings"].cast<py::dict>();
  EngineConfig c;
  c.rank = d["rank"].cast<int32_t>();
  c.size = d["size"].cast<int32_t>();
  c.hosts = d["hosts"].cast<std::vector<int32_t>>();
  c.host_names = d["host_names"].cast<std::vector<std::string>>();
  c.job = d["job"].cast<std::string>();
  c.elastic = d["elastic"].cast<bool>();
  c.secondary_failure_key = d["secondary_failure_key"].cast<std::string>();
  for (auto l : d["links"].cast<py::list>()) c.links.push_back(link_of(l.cast<py::dict>()));
  c.segment_fd = d["segment_fd"].cast<int>();
  c.segment_bytes = d["segment_bytes"].cast<uint64_t>();
  c.bells = d["bells"].cast<std::array<int, 2>>();
  c.bell_slot = d["bell_slot"].cast<uint32_t>();
  c.leads_host = d["leads_host"].cast<bool>();
  c.math_backend = library_of(d["math_backend"]);
  c.find_device = search_by(d["find_device"].cast<py::function>());
  read_choice(d, c);
  c.emulation = settings["emulation"].cast<bool>();
  c.overlap_levels = settings["hierarchical_overlap"].cast<bool>();
  c.fusion_threshold = settings["fusion_threshold"].cast<uint64_t>();
  c.coalesce_ns = c.dissolve_after_ns = ns_of(settings["cycle_time_ms"], 1e6);
  if (d.contains("autotune")) c.autotune = autotune_of(d["autotune"].cast<py::dict>(), c.autotune_log);
  c.cache_capacity = settings["cache_capacity"].cast<uint32_t>();
  c.stall_warn_ns = ns_of(settings["stall_warn_s"], 1e9);
  c.stall_abort_ns = ns_of(settings["stall_abort_s"], 1e9);
  if (d.contains("doctor"))
    std::tie(c.doctor_socket, c.doctor_facts) = d["doctor"].cast<std::pair<std::string, std::string>>();
  c.stall_json_path = settings["stall_json"].cast<std::string>();
  c.operation_ns = ns_of(settings["operation_timeout_s"], 1e9);
  if (c.operation_ns > 0) c.end_ns = std::clamp(c.operation_ns, kLeastEndNs, c.end_ns);
  c.last_calls = reinterpret_cast<void*>(d["last_calls"].cast<uintptr_t>());
  c.start_ns = ns_of(settings["start_timeout_s"], 1e9);
  c.first_handle = d["first_handle"].cast<uint64_t>();
  c.spin_ns = ns_of(d["spin_us"], 1e3);
  c.check_consistency = settings["check_consistency"].cast<bool>();
  c.engine_core = d["engine_core"].cast<int32_t>();
  c.observe = observe_of(d["observe"].cast<py::dict>());
  return c;
}

std::shared_ptr<plugins::Store> store_of(const py::dict& d) {
  const int fd = d["store_fd"].cast<int>();
  if (fd < 0) return std::make_shared<LocalStore>();
  return std::make_shared<rendezvous::StoreClient>(fd, d["store_key"].cast<std::string>());
}

void set_log_from(const py::dict& d) {
  const auto settings = d["settings"].cast<py::dict>();
  base::set_log(static_cast<base::Level>(settings["log_level"].cast<int>()), settings["log_with_time"].cast<bool>(),
                d["rank"].cast<int32_t>());
  plugins::set_log_sink([](int32_t level, const std::string& backend, const char*, int32_t, const std::string& text) {
    base::log(static_cast<base::Level>(level), backend + ": " + text);
  });
}

// Backends' threads stay on the cores of the thread that made the engine, also if another thread starts them.
void keep_threads_within(int32_t engine_core) {
  plugins::set_thread_sink([process = base::own_cores(), engine_core] { base::keep_within(process, engine_core); });
}

}  // namespace hvd::python
