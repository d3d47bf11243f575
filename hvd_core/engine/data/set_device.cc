// See set_device.h.
#include "engine/data/set_device.h"

#include <utility>

#include "engine/data/adasum.h"
#include "engine/data/direct.h"
#include "engine/data/parts.h"
#include "engine/observe/log.h"
#include "engine/types/collectives.h"

namespace hvd::data {

namespace {
constexpr int64_t kFinalizeNs = 1'000'000'000;
}

// A second communicator of the route's backend, on host memory, for a foreign device.
struct SetDevice::HostStaging {
  HostStaging(std::unique_ptr<plugin::Communicator> made, const std::shared_ptr<plugin::Device>& device,
              const HostMath& math, const EmulationPolicy& policy)
      : comm(std::move(made)), direct(*comm), whole(direct, *comm, math, policy), staged(whole, device) {}

  std::unique_ptr<plugin::Communicator> comm;
  DirectTransport direct;
  EmulatedTransport whole;
  StagedTransport staged;
};

// The communicators of one backend.
struct SetDevice::Route {
  // A communicator on the device's memory.
  struct OnDevice {
    OnDevice(std::unique_ptr<plugin::Communicator> made, const std::shared_ptr<plugin::Device>& device,
             const HostMath& math, const EmulationPolicy& policy)
        : comm(std::move(made)),
          direct(*comm, device),
          bounce(direct, device, math),
          emulated(bounce, *comm, math, policy),
          staged(emulated, device) {}

    std::unique_ptr<plugin::Communicator> comm;
    DeviceTransport direct;
    BounceTransport bounce;
    EmulatedTransport emulated;
    StagedTransport staged;
  };

  explicit Route(const plugin::Backend& backend) : backend(backend) {}
  const plugin::Backend& backend;
  std::unique_ptr<OnDevice> on_device;        // null if the backend cannot read the memory
  std::unique_ptr<HostStaging> host_staging;  // null if the device is not foreign, or the backend takes no host memory
  std::string why_not_on_device;
};

// Makes a Transport of Adasum, so that a StagedTransport can write it like any other collective.
struct SetDevice::AdasumTransport final : Transport {
  AdasumTransport(SetComms& host, const HostMath& math) : host(host), math(math) {}
  void write_steps(Schedule& schedule, const plugin::Collective& c) override {
    data::write_adasum(schedule, host, math, c);
  }
  int32_t rank() const override { return host.rank(); }
  int32_t size() const override { return host.size(); }
  SetComms& host;
  const HostMath& math;
};

SetDevice::SetDevice(const Backends& backends, std::shared_ptr<DeviceRoutes> device, SetComms& host,
                     const std::string& key, plugin::Store& store, int64_t deadline_ns)
    : type_(device->type()),
      table_name_(device->table()->name()),
      host_(host),
      host_name_((backends.local ? backends.local : backends.global)->name()),
      notes_(backends.notes),
      said_(backends.emulation.said),
      device_(device->open()) {
  // All members create the communicators in this order.
  for (size_t coll = 0; coll < route_of_.size(); ++coll) {
    const auto& backend = device->routes()[coll];
    if (!backend) continue;
    for (const auto& route : routes_)
      if (&route->backend == backend.get()) route_of_[coll] = route.get();
    if (route_of_[coll]) continue;
    routes_.push_back(std::make_unique<Route>(*backend));
    route_of_[coll] = routes_.back().get();
    open_route(*route_of_[coll], backends, backend, key, store, deadline_ns);
  }
  staged_ = std::make_unique<StagedTransport>(host, device_);
  adasum_ = std::make_unique<AdasumTransport>(host, *backends.math);
  // Never in chunks: Adasum needs the scalar products of whole tensors.
  staged_adasum_ = std::make_unique<StagedTransport>(*adasum_, device_, 0);
}

void SetDevice::open_route(Route& route, const Backends& backends, const std::shared_ptr<plugin::Backend>& backend,
                           const std::string& key, plugin::Store& store, int64_t deadline_ns) {
  std::vector<int32_t> all_ranks;
  for (int32_t r = 0; r < host_.size(); ++r) all_ranks.push_back(r);
  EmulationPolicy policy = backends.emulation;
  const bool foreign_device = backend->device_api() != device_->opened().api;
  const std::string name = type_ + "/" + backend->name();
  if (!(backend->comm_caps() & HVD_CAP_MEM_DEVICE) || !backend->serves_device_type(type_))
    route.why_not_on_device = "it does not support " + type_ + " memory";
  else if (foreign_device && device_->handles())
    route.why_not_on_device = "the addresses of that memory are handles, which only '" + table_name_ + "' understands";
  if (route.why_not_on_device.empty()) {
    EmulationPolicy on_device = policy;
    on_device.device_type = type_;
    on_device.completes = true;
    route.on_device =
        std::make_unique<Route::OnDevice>(create_comm(host_.layout(), backend, all_ranks, key + "/" + name, store,
                                                      deadline_ns, device_->opened(), backends.records),
                                          device_, *backends.math, on_device);
  }
  const bool takes_host = (backend->comm_caps() & HVD_CAP_MEM_HOST) && (backend->comm_caps() & HVD_CAP_REQUEST);
  if (foreign_device && takes_host)
    route.host_staging =
        std::make_unique<HostStaging>(create_comm(host_.layout(), backend, all_ranks, key + "/staged/" + name, store,
                                                  deadline_ns, {}, backends.records),
                                      device_, *backends.math, policy);
  if (route.on_device || route.host_staging) return;
  throw plugin::BackendError(HVD_E_UNSUPPORTED, 0, 0,
                             "horovod: backend '" + backend->name() + "' cannot serve tensors on " + type_ + ": " +
                                 route.why_not_on_device + ", and it takes no host memory to stage them through.\n" +
                                 "  fix: choose another backend for " + type_ + " (UNSUPPORTED)");
}

template <class F>
void SetDevice::for_each_comm(F&& f) const {
  for (const auto& route : routes_) {
    if (route->on_device) f(*route->on_device->comm);
    if (route->host_staging) f(*route->host_staging->comm);
  }
}

SetDevice::~SetDevice() {
  for (const auto& route : routes_)
    if (route->on_device) route->on_device->direct.release();
  for_each_comm([](plugin::Communicator& comm) {
    if (comm.aborted()) return;
    try {
      comm.finalize(observe::now_ns() + kFinalizeNs);
    } catch (const std::exception& e) {
      observe::log_if_room(observe::Level::Debug, [&] { return e.what(); });
    }
  });
}

void SetDevice::write_steps(Schedule& schedule, const plugin::Collective& c) {
  Route* const route = route_of_[static_cast<size_t>(c.coll)];
  if (!route) {
    note(c, nullptr, Service::Staged, "through host memory and " + host_name_);
    return staged_->write_steps(schedule, c);
  }
  const DeviceTransport::Method how =
      route->on_device ? route->on_device->direct.method(c) : DeviceTransport::Method::None;
  if (how == DeviceTransport::Method::Native) {
    note(c, &route->backend, Service::Native, "");
    return route->on_device->direct.write_steps(schedule, c);
  }
  if (how == DeviceTransport::Method::None && route->host_staging) {
    note(c, &route->backend, Service::Staged,
         "through host memory and " + route->backend.name() + reason_for_staging(*route, c));
    return route->host_staging->staged.write_steps(schedule, c);
  }
  Route::OnDevice& on_device = *route->on_device;
  on_device.emulated.check(c);
  if (how != DeviceTransport::Method::None) {
    const char* text = how == DeviceTransport::Method::AsBytes ? "its bytes as another type" : "sum and division";
    note(c, &route->backend, Service::Emulated, text);
    return on_device.direct.write_steps(schedule, c);
  }
  const bool varying = !c.out_counts.empty() || !c.in_counts.empty();
  const Served served = on_device.emulated.served(c.coll, c.dtype, c.op, varying);
  note(c, &route->backend, Service::Emulated, served.how.empty() ? "factors on the host" : served.how);
  on_device.staged.write_steps(schedule, c);
}

std::string SetDevice::reason_for_staging(Route& route, const plugin::Collective& c) const {
  const std::string& why = route.on_device ? route.on_device->direct.why(c) : route.why_not_on_device;
  return why.empty() ? "" : " (" + why + ")";
}

void SetDevice::write_adasum(Schedule& schedule, const plugin::Collective& c) {
  note(c, nullptr, Service::Staged, "Adasum on the host, over " + host_name_);
  staged_adasum_->write_steps(schedule, c);
}

void SetDevice::note(const plugin::Collective& c, const plugin::Backend* backend, Service service,
                     const std::string& how) {
  ServiceNotes::Key key{type_, c.coll, c.dtype, types::has_reduction(c.coll) ? c.op : 0};
  if (notes_->has(key)) return;
  if (!notes_->add(std::move(key), {backend ? backend->name() : host_name_, {service, how}})) return;
  if (rank() != 0 || service != Service::Staged) return;  // EmulatedTransport writes its own log lines
  // Once per collective, not once per dtype.
  if (!said_->insert("staged/" + type_ + "/" + std::to_string(c.coll)).second) return;
  // A warning where a route names a backend: the user may have chosen it for its speed.
  observe::log(backend ? observe::Level::Warning : observe::Level::Info,
               std::string(types::collective_name(c.coll)) + " on " + type_ + ": STAGED " + how + " (said once).");
}

void SetDevice::check() {
  for_each_comm([](plugin::Communicator& comm) {
    // An aborted collective leaves the stream as a complete one does, and not every backend reports the abort.
    if (comm.aborted()) {
      throw plugin::BackendError(HVD_E_ABORTED, HVD_EF_COMM_DEAD, 0,
                                 comm.backend().name() + ": the communicator was aborted (ABORTED)");
    }
    std::string text;
    const hvd_rc rc = comm.async_error(&text);
    if (rc == HVD_OK || rc == HVD_INPROGRESS || rc == HVD_E_UNSUPPORTED) return;
    throw plugin::BackendError(rc, 0, 0, text);
  });
}

void SetDevice::abort(plugin::CallRecord* record) noexcept {
  for_each_comm([record](plugin::Communicator& comm) { comm.abort(record); });
}

}  // namespace hvd::data
