// Tensors on devices as callers see them: the device types that are served, the marks at which data are ready, and the
// order of a caller's stream after an operation. The executor does the work in between.
#include <time.h>

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/core/engine.h"

namespace hvd {

using agreement::BellState;

namespace {
constexpr int64_t kLookNs = 5'000'000;  // the longest sleep on a device before the engine is driven again

template <typename F>
dataplane::DeviceRoutes::ByCollective load_routes(const EngineConfig::DeviceConfig& d, F&& load) {
  dataplane::DeviceRoutes::ByCollective routes;
  for (size_t coll = 0; coll < routes.size(); ++coll) routes[coll] = load(d.routes[coll]);
  return routes;
}

template <typename F>
std::shared_ptr<dataplane::DeviceRoutes> make_routes(const EngineConfig::DeviceConfig& d, F&& load) {
  return std::make_shared<dataplane::DeviceRoutes>(d.type, load(d.table), d.ordinal, load_routes(d, load),
                                                   load(d.within), d.choice);
}

// A library that the search has loaded already, so that no code of the backend runs.
std::shared_ptr<plugins::Backend> loaded(const EngineConfig::Library& l) {
  return l.path.empty() ? nullptr : plugins::Backend::load_library(l.path, l.name);
}
}  // namespace

void Engine::plan_devices() {
  const auto search = [find = config_.find_device](const std::string& type) -> dataplane::DeviceTypes::Found {
    if (!find) return {};
    auto [found, why] = find(type);
    return {found ? make_routes(*found, loaded) : nullptr, std::move(why)};
  };
  backends_.devices = std::make_shared<dataplane::DeviceTypes>(search);
  for (const auto& d : config_.devices)
    backends_.devices->add(make_routes(d, [this](const auto& library) { return load(library); }));
}

// The backends of a process set with a choice of its own. The job has opened the devices; a type that the set's
// backends do not serve keeps the job's routes.
std::shared_ptr<const dataplane::Backends> Engine::backends_like(const EngineConfig& config) const {
  auto own = std::make_shared<dataplane::Backends>(backends_);
  load_host_backends(*own, config);
  own->devices = std::make_shared<dataplane::DeviceTypes>(backends_.devices);
  for (const auto& d : config.devices) {
    const auto opened = backends_.devices->known(d.type);
    if (!opened) continue;
    auto routes = load_routes(d, [this](const auto& library) { return load(library); });
    own->devices->add(std::make_shared<dataplane::DeviceRoutes>(opened, std::move(routes), load(d.within)));
  }
  return own;
}

std::vector<std::string> Engine::device_types() const {
  std::vector<std::string> types;
  for (const auto& routes : backends_.devices->all()) types.push_back(routes->type());
  return types;
}

bool Engine::serves(const std::string& device_type) const {
  return device_type == "cpu" ||
         (lifecycle_.state() != Lifecycle::State::Forked && backends_.devices->find(device_type) != nullptr);
}

void Engine::note_copied(const agreement::SignatureFields& fields, const std::vector<calls::Tensor>& tensors) {
  const int32_t collective = base::collective_of(fields.kind);
  const int32_t op = base::has_reduction(collective) ? fields.reduce_op : 0;
  for (const auto& t : tensors)
    backends_.notes->add({t.staged_from, collective, static_cast<int32_t>(t.dtype), op},
                         {"", {dataplane::Service::Staged, ""}});
}

std::string Engine::why_not_served(const std::string& device_type) const {
  std::string served = "cpu";
  for (const auto& type : device_types()) served += ", " + type;
  const std::string found = backends_.devices->why_not(device_type);
  const std::string& note = found.empty() ? config_.devices_note : found;
  const std::string why = note.empty() ? "" : "\n  why: " + note + ".";
  return "horovod: no backend serves tensors on device type '" + device_type + "'; served in this job: " + served +
         "." + why +
         "\n  fix: name or install a backend for that device (hvd plugin list shows what is there), or move the tensor "
         "to host memory.";
}

std::shared_ptr<plugins::Backend> Engine::backend(const std::string& name) const {
  std::vector<std::shared_ptr<plugins::Backend>> all{backends_.local, backends_.global};
  all.insert(all.end(), backends_.host_routes.begin(), backends_.host_routes.end());
  for (const auto& routes : backends_.devices->all()) {
    all.push_back(routes->table());
    all.insert(all.end(), routes->routes().begin(), routes->routes().end());
  }
  const auto at = std::find_if(all.begin(), all.end(), [&](const auto& b) { return b && b->name() == name; });
  return at == all.end() ? nullptr : *at;
}

std::shared_ptr<plugins::Device> Engine::device_of(const calls::Tensor& tensor) const {
  check_not_forked();  // the device is the parent's as well
  if (const auto routes = backends_.devices->find(tensor.device_type)) return routes->open(tensor);
  throw InvalidRequest(why_not_served(tensor.device_type));
}

std::vector<plugins::MarkRef> Engine::ready_marks(const std::vector<calls::Tensor>& in,
                                                  const std::vector<calls::Tensor>& out) const {
  check_usable();
  std::vector<plugins::MarkRef> marks;
  std::vector<void*> seen;
  for (const auto* list : {&in, &out}) {
    for (const calls::Tensor& t : *list) {
      const auto device = device_of(t);
      if (!t.has_stream || std::find(seen.begin(), seen.end(), t.stream) != seen.end()) continue;
      seen.push_back(t.stream);
      marks.push_back(device->mark(device->wrap(t.stream)));
    }
  }
  return marks;
}

bool Engine::order_after(calls::Request& request, void* stream) {
  CallUnderWay under_way(*this);
  check_not_forked();
  if (request.done() || !request.finished) return true;
  plugins::Device& device = request.finished->device();
  if (!device.orders_streams() || !device.wraps_streams()) return false;
  device.order_after(device.wrap(stream), *request.finished);
  return true;
}

bool Engine::finish(calls::Request& request, int64_t slice_ns) {
  if (!wait(request, slice_ns)) return false;
  CallUnderWay under_way(*this);
  const int64_t until = base::now_ns() + slice_ns;
  while (!poll(request)) {
    const int64_t now = base::now_ns();
    if (now >= until) return false;
    try {
      request.finished->wait(std::min(until, now + kLookNs));
    } catch (const plugins::BackendError&) {
      // The driver sees the failure too, and aborts the job, which ends the request.
      const timespec pause{0, 100'000};
      nanosleep(&pause, nullptr);
    }
  }
  return true;
}

}  // namespace hvd
