// See set_device.h.
#include "engine/data/set_device.h"

#include <string_view>
#include <utility>

#include "engine/data/adasum.h"
#include "engine/data/direct.h"
#include "engine/data/parts.h"
#include "engine/observe/log.h"
#include "engine/types/collectives.h"

namespace hvd::data {

namespace {
constexpr int64_t kGoodbyeNs = 1'000'000'000;
}

struct SetDevice::Beside {
  Beside(std::unique_ptr<plugin::Communicator> made, const std::shared_ptr<plugin::Device>& device,
         const HostMath& math, const EmulationPolicy& policy)
      : comm(std::move(made)), direct(*comm), whole(direct, *comm, math, policy), staged(whole, device) {}

  std::unique_ptr<plugin::Communicator> comm;
  DirectTransport direct;
  EmulatedTransport whole;
  StagedTransport staged;
};

// Over one backend.
struct SetDevice::Way {
  // On the device's memory.
  struct There {
    There(std::unique_ptr<plugin::Communicator> made, const std::shared_ptr<plugin::Device>& device,
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

  explicit Way(const plugin::Backend& backend) : backend(backend) {}
  const plugin::Backend& backend;
  std::unique_ptr<There> there;    // null where the memory is out of its reach
  std::unique_ptr<Beside> beside;  // null where it opened the device, or takes no host memory
  std::string why_not_there;
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
  // All members in this order.
  for (size_t coll = 0; coll < ways_.size(); ++coll) {
    const auto& backend = plan_->routes()[coll];
    if (!backend) continue;
    for (const auto& way : all_ways_)
      if (&way->backend == backend.get()) ways_[coll] = way.get();
    if (ways_[coll]) continue;
    all_ways_.push_back(std::make_unique<Way>(*backend));
    ways_[coll] = all_ways_.back().get();
    open_way(*ways_[coll], backends, backend, key, store, deadline_ns);
  }
  staged_ = std::make_unique<StagedTransport>(host, device_);
  adasum_ = std::make_unique<AdasumTransport>(host, *backends.math);
  staged_adasum_ = std::make_unique<StagedTransport>(*adasum_, device_, 0);  // whole tensors have to meet
}

void SetDevice::open_way(Way& way, const Backends& backends, const std::shared_ptr<plugin::Backend>& backend,
                         const std::string& key, plugin::Store& store, int64_t deadline_ns) {
  std::vector<int32_t> everybody;
  for (int32_t r = 0; r < host_.size(); ++r) everybody.push_back(r);
  EmulationPolicy policy = backends.emulation;
  const bool guest = backend->device_api() != device_->opened().api;
  const std::string name = plan_->type() + "/" + backend->name();
  if (!(backend->comm_caps() & HVD_CAP_MEM_DEVICE) || !backend->serves_device_type(plan_->type()))
    way.why_not_there = "it knows no " + plan_->type() + " memory";
  else if (guest && device_->handles())
    way.why_not_there = "what '" + plan_->table()->name() + "' has for addresses of such memory are handles of its own";
  if (way.why_not_there.empty()) {
    EmulationPolicy there = policy;
    there.device_type = plan_->type();
    there.completes = true;
    way.there = std::make_unique<Way::There>(
        create_comm(host_.layout(), backend, everybody, key + "/" + name, store, deadline_ns, device_->opened()),
        device_, *backends.math, there);
  }
  const bool takes_host = (backend->comm_caps() & HVD_CAP_MEM_HOST) && (backend->comm_caps() & HVD_CAP_REQUEST);
  if (guest && takes_host)
    way.beside = std::make_unique<Beside>(
        create_comm(host_.layout(), backend, everybody, key + "/beside/" + name, store, deadline_ns), device_,
        *backends.math, policy);
  if (way.there || way.beside) return;
  throw plugin::BackendError(HVD_E_UNSUPPORTED, 0, 0,
                             "horovod: backend '" + backend->name() + "' cannot serve tensors on " + plan_->type() +
                                 ": " + way.why_not_there + ", and it takes no host memory to stage them through.\n" +
                                 "  fix: choose another backend for " + plan_->type() + " (UNSUPPORTED)");
}

template <class F>
void SetDevice::each_comm(F&& f) const {
  for (const auto& way : all_ways_) {
    if (way->there) f(*way->there->comm);
    if (way->beside) f(*way->beside->comm);
  }
}

SetDevice::~SetDevice() {
  for (const auto& way : all_ways_)
    if (way->there) way->there->direct.release();
  each_comm([](plugin::Communicator& comm) {
    if (comm.aborted()) return;
    try {
      comm.finalize(observe::now_ns() + kGoodbyeNs);
    } catch (const plugin::BackendError& e) {
      observe::log(observe::Level::Debug, e.what());
    }
  });
}

void SetDevice::plan(Program& program, const plugin::Collective& c) {
  Way* const way = ways_[static_cast<size_t>(c.coll)];
  if (!way) {
    note(c, nullptr, "STAGED", "through host memory and " + host_name_);
    return staged_->plan(program, c);
  }
  const DeviceTransport::Way how = way->there ? way->there->direct.way(c) : DeviceTransport::Way::None;
  if (how == DeviceTransport::Way::Native) {
    note(c, &way->backend, "NATIVE", "");
    return way->there->direct.plan(program, c);
  }
  if (how == DeviceTransport::Way::None && way->beside) {
    note(c, &way->backend, "STAGED", "through host memory and " + way->backend.name() + why_beside(*way, c));
    return way->beside->staged.plan(program, c);
  }
  Way::There& there = *way->there;
  there.emulated.admit(c);
  if (how != DeviceTransport::Way::None) {
    const char* text = how == DeviceTransport::Way::Bytes ? "its bytes as another type" : "sum and division";
    note(c, &way->backend, "EMULATED", text);
    return there.direct.plan(program, c);
  }
  const bool varying = !c.out_counts.empty() || !c.in_counts.empty();
  const Service service = there.emulated.service(c.coll, c.dtype, c.op, varying);
  note(c, &way->backend, "EMULATED", service.how.empty() ? "factors on the host" : service.how);
  there.staged.plan(program, c);
}

std::string SetDevice::why_beside(Way& way, const plugin::Collective& c) const {
  const std::string& why = way.there ? way.there->direct.why(c) : way.why_not_there;
  return why.empty() ? "" : " (" + why + ")";
}

void SetDevice::plan_adasum(Program& program, const plugin::Collective& c) {
  note(c, nullptr, "STAGED", "Adasum on the host, over " + host_name_);
  staged_adasum_->plan(program, c);
}

void SetDevice::note(const plugin::Collective& c, const plugin::Backend* backend, const char* served,
                     const std::string& how) {
  ServiceNotes::Key key{plan_->type(), c.coll, c.dtype, types::has_reduction(c.coll) ? c.op : 0};
  if (notes_->has(key)) return;
  if (!notes_->add(std::move(key), {backend ? backend->name() : host_name_, served, how})) return;
  if (rank() != 0 || std::string_view(served) != "STAGED") return;  // what is composed is said where that is done
  // Not for each type of element.
  if (!said_->insert("staged/" + plan_->type() + "/" + std::to_string(c.coll)).second) return;
  // A backend that somebody has named for this memory, perhaps for its speed.
  observe::log(
      backend ? observe::Level::Warning : observe::Level::Info,
      std::string(types::collective_name(c.coll)) + " on " + plan_->type() + ": STAGED " + how + " (said once).");
}

void SetDevice::check() {
  each_comm([](plugin::Communicator& comm) {
    // What an abort has freed has come to the end of its stream as well, and not every backend remembers why.
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

void SetDevice::abort() noexcept {
  each_comm([](plugin::Communicator& comm) { comm.abort(); });
}

}  // namespace hvd::data
