// See set_device.h.
#include "engine/dataplane/set_device.h"

#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/dataplane/device_levels.h"
#include "engine/dataplane/direct.h"
#include "engine/dataplane/parts.h"

namespace hvd::dataplane {

namespace {
constexpr int64_t kFinalizeNs = 1'000'000'000;
}  // namespace

// A second communicator of the route's backend, on host memory, for a foreign device.
struct SetDevice::HostStaging {
  HostStaging(std::unique_ptr<plugins::Communicator> made, const std::shared_ptr<plugins::Device>& device,
              const HostMath& math, const EmulationPolicy& policy)
      : comm(std::move(made)), direct(*comm), whole(direct, *comm, math, policy), staged(whole, device) {}

  std::unique_ptr<plugins::Communicator> comm;
  DirectLowering direct;
  EmulatedLowering whole;
  StagedLowering staged;
};

// The communicators of one backend.
struct SetDevice::Route {
  // A communicator on the device's memory.
  struct OnDevice {
    OnDevice(std::unique_ptr<plugins::Communicator> made, const std::shared_ptr<plugins::Device>& device,
             const HostMath& math, const EmulationPolicy& policy)
        : comm(std::move(made)),
          direct(*comm, device),
          bounce(direct, device, math),
          emulated(bounce, *comm, math, policy),
          staged(emulated, device) {}

    std::unique_ptr<plugins::Communicator> comm;
    DeviceLowering direct;
    BounceLowering bounce;
    EmulatedLowering emulated;
    StagedLowering staged;
  };

  explicit Route(const plugins::Backend& backend) : backend(backend) {}
  const plugins::Backend& backend;
  std::unique_ptr<OnDevice> on_device;        // null if the backend cannot read the memory
  std::unique_ptr<HostStaging> host_staging;  // null if the device is not foreign, or the backend takes no host memory
  std::string why_not_on_device;
};

// An allreduce over two levels: a backend on the device within the hosts, and the one of host memory between them.
struct SetDevice::Levels {
  Levels(const plugins::Backend& inner, const plugins::Backend& outer) : within(inner), between(outer) {}

  struct Lane final : Lowering {
    Lane(const SetDevice& set, Route& route, const Layout& layout) : set(set), route(route), layout(layout) {}
    void write_steps(Schedule& schedule, const plugins::Collective& c) override {
      set.method(route, c).lowering->write_steps(schedule, c);
    }
    int32_t rank() const override { return layout.my_host(); }
    int32_t size() const override { return layout.host_count(); }
    const SetDevice& set;
    Route& route;
    const Layout& layout;
  };

  void begin(const SetDevice& set, const Layout& layout, bool may_compose) {
    composes = may_compose;
    lane = std::make_unique<Lane>(set, between, layout);
    lowering = std::make_unique<DeviceLevels>(layout, within.on_device->direct, *lane, set.device());
  }

  bool serves(const plugins::Collective& c) {
    const auto good = [this](const plugins::Collective& step) {
      const DeviceLowering::Method method = within.on_device->direct.method(step);
      return method == DeviceLowering::Method::Native || (composes && method != DeviceLowering::Method::None);
    };
    return DeviceLevels::divides(c) && good(DeviceLevels::scatter_of(c)) && good(DeviceLevels::gather_of(c));
  }

  Route within, between;
  bool composes = true;  // whether steps may be EMULATED
  std::unique_ptr<Lane> lane;
  std::unique_ptr<DeviceLevels> lowering;
};

SetDevice::SetDevice(const Backends& backends, std::shared_ptr<DeviceRoutes> device, SetComms& host,
                     const std::string& key, plugins::Store& store, int64_t deadline_ns, const SetDevice* parent)
    : type_(device->type()),
      table_name_(device->table()->name()),
      host_(host),
      notes_(backends.notes),
      said_(backends.emulation.said),
      device_(device->open()) {
  const Whole of_parent = parent ? parent->whole() : Whole();
  const Layout& layout = host.layout();
  std::vector<int32_t> all_ranks;
  for (int32_t r = 0; r < host.size(); ++r) all_ranks.push_back(r);
  // All members create the communicators in this order.
  for (size_t coll = 0; coll < route_of_.size(); ++coll) {
    const auto& backend = device->routes()[coll];
    if (!backend) continue;
    for (const auto& route : routes_)
      if (&route->backend == backend.get()) route_of_[coll] = route.get();
    if (route_of_[coll]) continue;
    routes_.push_back(std::make_unique<Route>(*backend));
    route_of_[coll] = routes_.back().get();
    open_route(*route_of_[coll], backends, backend, all_ranks, key + "/" + type_ + "/" + backend->name(), store,
               deadline_ns, of_parent);
  }
  if (const auto& within = device->within(); within && backends.global && DeviceLevels::fits(layout)) {
    std::vector<int32_t> lane;
    for (const auto& of_host : layout.hosts) lane.push_back(of_host[static_cast<size_t>(layout.my_local())]);
    levels_ = std::make_unique<Levels>(*within, *backends.global);
    open_route(levels_->within, backends, within, layout.neighbours(),
               key + "/" + type_ + "/host/" + std::to_string(layout.my_host()), store, deadline_ns);
    open_route(levels_->between, backends, backends.global, lane,
               key + "/" + type_ + "/lane/" + std::to_string(layout.my_local()), store, deadline_ns);
    if (levels_->within.on_device)
      levels_->begin(*this, layout, backends.emulation.allowed);
    else
      levels_.reset();
  }
  staged_ = std::make_unique<StagedLowering>(host, device_);
  adasum_ = std::make_unique<AdasumLowering>(host, *backends.math);
  // Never in chunks: Adasum needs the scalar products of whole tensors.
  staged_adasum_ = std::make_unique<StagedLowering>(*adasum_, device_, 0);
}

void SetDevice::open_route(Route& route, const Backends& backends, const std::shared_ptr<plugins::Backend>& backend,
                           const std::vector<int32_t>& ranks, const std::string& key, plugins::Store& store,
                           int64_t deadline_ns, const Whole& parent) {
  EmulationPolicy policy = backends.emulation;
  const bool foreign_device = backend->device_api() != device_->opened().api;
  if (!(backend->comm_caps() & HVD_CAP_MEM_DEVICE) || !backend->serves_device_type(type_))
    route.why_not_on_device = "it does not support " + type_ + " memory";
  else if (foreign_device && device_->handles())
    route.why_not_on_device = "the addresses of that memory are handles, which only '" + table_name_ + "' understands";
  if (route.why_not_on_device.empty()) {
    EmulationPolicy on_device = policy;
    on_device.device_type = type_;
    on_device.completes = true;
    const auto of_parent = parent.find(backend->name());
    std::unique_ptr<plugins::Communicator> comm;
    if (of_parent != parent.end())
      comm = split_comm(host_.layout(), true, *of_parent->second, key, store, deadline_ns, device_->opened(),
                        backends.driver);
    if (!comm)
      comm = create_comm(host_.layout(), backend, ranks, key, store, deadline_ns, device_->opened(), backends.driver);
    route.on_device = std::make_unique<Route::OnDevice>(std::move(comm), device_, *backends.math, on_device);
  }
  const bool takes_host = (backend->comm_caps() & HVD_CAP_MEM_HOST) && (backend->comm_caps() & HVD_CAP_REQUEST);
  if (foreign_device && takes_host)
    route.host_staging = std::make_unique<HostStaging>(
        create_comm(host_.layout(), backend, ranks, key + "/staged", store, deadline_ns, {}, backends.driver), device_,
        *backends.math, policy);
  if (route.on_device || route.host_staging) return;
  throw plugins::BackendError(HVD_E_UNSUPPORTED, 0, 0,
                              "horovod: backend '" + backend->name() + "' cannot serve tensors on " + type_ + ": " +
                                  route.why_not_on_device + ", and it takes no host memory to stage them through.\n" +
                                  "  fix: choose another backend for " + type_ + " (UNSUPPORTED)");
}

template <class F>
void SetDevice::for_each_comm(F&& f) const {
  const auto each = [&](const Route& route) {
    if (route.on_device) f(*route.on_device->comm);
    if (route.host_staging) f(*route.host_staging->comm);
  };
  for (const auto& route : routes_) each(*route);
  if (levels_) each(levels_->within), each(levels_->between);
}

SetDevice::~SetDevice() {
  for (const auto& route : routes_)
    if (route->on_device) route->on_device->direct.release();
  if (levels_)
    for (Route* route : {&levels_->within, &levels_->between})
      if (route->on_device) route->on_device->direct.release();
  for_each_comm([](plugins::Communicator& comm) {
    if (comm.aborted()) return;
    try {
      comm.finalize(base::now_ns() + kFinalizeNs);
    } catch (const std::exception& e) {
      base::log(base::Level::Debug, e.what());
    }
  });
}

void SetDevice::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (levels_ && levels_->serves(c)) {
    const bool staged = method(levels_->between, c).served.service == Service::Staged;
    const std::string &within = levels_->within.backend.name(), &between = levels_->between.backend.name();
    note(c, within + " x " + between, false,
         {staged ? Service::Staged : Service::Native,
          within + " within hosts, and " + between + " between them" + (staged ? " through host memory" : "")});
    return levels_->lowering->write_steps(schedule, c);
  }
  Route* const route = route_of_[static_cast<size_t>(c.coll)];
  if (!route) {
    const std::string& over = host_.carriers(c.coll);
    note(c, over, false, {Service::Staged, "through host memory and " + over});
    return staged_->write_steps(schedule, c);
  }
  Method chosen = method(*route, c);
  note(c, route->backend.name(), true, std::move(chosen.served));
  chosen.lowering->write_steps(schedule, c);
}

SetDevice::Method SetDevice::method(Route& route, const plugins::Collective& c) const {
  using OnDevice = DeviceLowering::Method;
  const OnDevice how = route.on_device ? route.on_device->direct.method(c) : OnDevice::None;
  if (how == OnDevice::Native) return {&route.on_device->direct, {Service::Native, ""}};
  if (how == OnDevice::None && route.host_staging)
    return {&route.host_staging->staged,
            {Service::Staged, "through host memory and " + route.backend.name() + reason_for_staging(route, c)}};
  Route::OnDevice& on_device = *route.on_device;
  on_device.emulated.check(c);
  if (how != OnDevice::None)
    return {&on_device.direct,
            {Service::Emulated, how == OnDevice::AsBytes ? "its bytes as another type" : "sum and division"}};
  Served served = on_device.emulated.served(c.coll, c.dtype, c.op, c.varying());
  return {&on_device.staged, {Service::Emulated, served.how.empty() ? "factors on the host" : std::move(served.how)}};
}

bool SetDevice::sends(int32_t dtype) const {
  const Route* const route = route_of_[HVD_SEND];
  if (!route || route != route_of_[HVD_RECV] || !route->on_device) return false;
  plugins::Collective c;
  c.dtype = dtype;
  for (int32_t coll : {HVD_SEND, HVD_RECV}) {
    c.coll = coll;
    if (route->on_device->direct.method(c) != DeviceLowering::Method::Native) return false;
  }
  return true;
}

std::string SetDevice::reason_for_staging(Route& route, const plugins::Collective& c) {
  const std::string& why = route.on_device ? route.on_device->direct.why(c) : route.why_not_on_device;
  return why.empty() ? "" : " (" + why + ")";
}

void SetDevice::write_adasum(Schedule& schedule, const plugins::Collective& c) {
  const std::string& over = host_.carriers(c.coll);
  note(c, over, false, {Service::Staged, "Adasum on the host, over " + over});
  staged_adasum_->write_steps(schedule, c);
}

void SetDevice::note(const plugins::Collective& c, const std::string& over, bool named, Served served) {
  ServiceNotes::Key key{type_, c.coll, c.dtype, base::has_reduction(c.coll) ? c.op : 0};
  if (notes_->has(key) || !notes_->add(std::move(key), {over, served})) return;
  if (rank() != 0 || served.service != Service::Staged) return;  // EmulatedLowering writes its own log lines
  // Once per collective, not once per dtype.
  if (!said_->insert("staged/" + type_ + "/" + std::to_string(c.coll)).second) return;
  // A warning where a route names a backend: the user may have chosen it for its speed.
  base::log(named ? base::Level::Warning : base::Level::Info,
            std::string(base::collective_name(c.coll)) + " on " + type_ + ": STAGED " + served.how + " (said once).");
}

void SetDevice::check() {
  for_each_comm([](plugins::Communicator& comm) {
    // An aborted collective leaves the stream as a complete one does, and not every backend reports the abort.
    if (comm.aborted()) {
      throw plugins::BackendError(HVD_E_ABORTED, HVD_EF_COMM_DEAD, 0,
                                  comm.backend().name() + ": the communicator was aborted (ABORTED)");
    }
    std::string text;
    const hvd_rc rc = comm.async_error(&text);
    if (rc == HVD_OK || rc == HVD_INPROGRESS || rc == HVD_E_UNSUPPORTED) return;
    throw plugins::BackendError(rc, 0, 0, text);
  });
}

Whole SetDevice::whole() const {
  Whole found;
  for (const auto& route : routes_)
    if (route->on_device && route->backend.splits()) found[route->backend.name()] = route->on_device->comm.get();
  return found;
}

void SetDevice::take_part(const Layout& part, const std::string& key, plugins::Store& store, int64_t deadline_ns,
                          const std::shared_ptr<plugins::DriverRecord>& driver) const {
  for (const auto& route : routes_) {  // in the order of the constructor
    if (!route->on_device || !route->backend.splits()) continue;
    split_comm(part, false, *route->on_device->comm, key + "/" + type_ + "/" + route->backend.name(), store,
               deadline_ns, device_->opened(), driver);
  }
}

void SetDevice::abort() noexcept {
  for_each_comm([](plugins::Communicator& comm) { comm.abort(); });
}

}  // namespace hvd::dataplane
