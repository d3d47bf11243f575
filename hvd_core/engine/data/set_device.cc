// See set_device.h.
#include "engine/data/set_device.h"

#include <utility>

#include "engine/control/signature.h"
#include "engine/data/adasum.h"
#include "engine/data/parts.h"
#include "engine/observe/log.h"

namespace hvd::data {

namespace {
constexpr int64_t kGoodbyeNs = 1'000'000'000;
}

struct SetDevice::Way {
  Way(std::unique_ptr<plugin::Communicator> made, const std::shared_ptr<plugin::Device>& device, const HostMath& math,
      const EmulationPolicy& policy)
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

// So that a staged Adasum is planned like any other collective.
struct SetDevice::AdasumTransport final : Transport {
  AdasumTransport(SetComms& host, const HostMath& math) : host(host), math(math) {}
  void plan(Program& program, const plugin::Collective& c) override { data::plan_adasum(program, host, math, c); }
  int32_t rank() const override { return host.rank(); }
  int32_t size() const override { return host.size(); }
  SetComms& host;
  const HostMath& math;
};

SetDevice::SetDevice(const Backends& backends, std::shared_ptr<DevicePlan> plan, SetComms& host, const std::string& key,
                     plugin::Store& store, int64_t deadline_ns)
    : plan_(std::move(plan)),
      host_(host),
      host_name_((backends.local ? backends.local : backends.global)->name()),
      notes_(backends.notes),
      said_(backends.emulation.said),
      device_(plan_->open()) {
  EmulationPolicy policy = backends.emulation;
  policy.device_type = plan_->type();
  policy.completes = true;
  std::vector<int32_t> everybody;
  for (int32_t r = 0; r < host.size(); ++r) everybody.push_back(r);
  // All members in this order.
  for (size_t coll = 0; coll < ways_.size(); ++coll) {
    const auto& backend = plan_->routes()[coll];
    if (!backend) continue;
    for (const auto& way : all_ways_)
      if (&way->comm->backend() == backend.get()) ways_[coll] = way.get();
    if (ways_[coll]) continue;
    auto comm = create_comm(host.layout(), backend, everybody, key + "/" + plan_->type() + "/" + backend->name(), store,
                            deadline_ns, device_->handle());
    all_ways_.push_back(std::make_unique<Way>(std::move(comm), device_, *backends.math, policy));
    ways_[coll] = all_ways_.back().get();
  }
  staged_ = std::make_unique<StagedTransport>(host, device_);
  adasum_ = std::make_unique<AdasumTransport>(host, *backends.math);
  staged_adasum_ = std::make_unique<StagedTransport>(*adasum_, device_, 0);  // whole tensors have to meet
}

SetDevice::~SetDevice() {
  for (auto& way : all_ways_) {
    if (way->comm->aborted()) continue;
    try {
      way->comm->finalize(observe::now_ns() + kGoodbyeNs);
    } catch (const plugin::BackendError& e) {
      observe::log(observe::Level::Debug, e.what());
    }
  }
}

void SetDevice::plan(Program& program, const plugin::Collective& c) {
  Way* const way = ways_[static_cast<size_t>(c.coll)];
  if (!way) {
    note(c, nullptr, "STAGED", "through host memory and " + host_name_);
    return staged_->plan(program, c);
  }
  const DeviceTransport::Way how = way->direct.way(c);
  if (how == DeviceTransport::Way::Native) {
    note(c, way, "NATIVE", "");
    return way->direct.plan(program, c);
  }
  way->emulated.admit(c);
  if (how != DeviceTransport::Way::None) {
    note(c, way, "EMULATED", how == DeviceTransport::Way::Bytes ? "its bytes as another type" : "sum and division");
    return way->direct.plan(program, c);
  }
  const bool varying = !c.out_counts.empty() || !c.in_counts.empty();
  const Service service = way->emulated.service(c.coll, c.dtype, c.op, varying);
  note(c, way, "EMULATED", service.how.empty() ? "factors on the host" : service.how);
  way->staged.plan(program, c);
}

void SetDevice::plan_adasum(Program& program, const plugin::Collective& c) {
  note(c, nullptr, "STAGED", "Adasum on the host, over " + host_name_);
  staged_adasum_->plan(program, c);
}

void SetDevice::note(const plugin::Collective& c, const Way* way, const char* served, const std::string& how) {
  ServiceNotes::Key key{plan_->type(), c.coll, c.dtype, reduces(c.coll) ? c.op : 0};
  if (notes_->has(key)) return;
  if (!notes_->add(std::move(key), {way ? way->comm->backend().name() : host_name_, served, how})) return;
  if (way || rank() != 0) return;
  // Not for each type of element.
  if (!said_->insert("staged/" + plan_->type() + "/" + std::to_string(c.coll)).second) return;
  observe::log(observe::Level::Info,
               std::string(coll_name(c.coll)) + " on " + plan_->type() + ": STAGED " + how + " (said once).");
}

void SetDevice::check() {
  for (auto& way : all_ways_) {
    // What an abort has freed has come to the end of its stream as well, and not every backend remembers why.
    if (way->comm->aborted()) {
      throw plugin::BackendError(HVD_E_ABORTED, HVD_EF_COMM_DEAD, 0,
                                 way->comm->backend().name() + ": the communicator was aborted (ABORTED)");
    }
    std::string text;
    const hvd_rc rc = way->comm->async_error(&text);
    if (rc == HVD_OK || rc == HVD_INPROGRESS || rc == HVD_E_UNSUPPORTED) continue;
    throw plugin::BackendError(rc, 0, 0, text);
  }
}

void SetDevice::abort() noexcept {
  for (auto& way : all_ways_) way->comm->abort();
}

}  // namespace hvd::data
