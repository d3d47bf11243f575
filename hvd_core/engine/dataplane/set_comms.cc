// See set_comms.h.
#include "engine/dataplane/set_comms.h"

#include <algorithm>
#include <utility>

#include "engine/dataplane/direct.h"
#include "engine/dataplane/hierarchical.h"
#include "engine/dataplane/set_device.h"

namespace hvd::dataplane {

namespace {

// Which communicators a set has in host memory, apart from those of a hierarchy.
struct Plan {
  bool levels = false;                      // a hierarchy serves some collectives
  std::shared_ptr<plugins::Backend> usual;  // over all members, for the others; null: the hierarchy serves all
  std::string kind;                         // of the usual one
  std::map<std::string, std::shared_ptr<plugins::Backend>> special;  // by kind: serve single collectives
};

std::string special_kind(const plugins::Backend& backend) { return "only/" + backend.name(); }

// Equal on all ranks, members or not.
Plan plan_of(const Backends& backends, const Layout& layout) {
  Plan plan;
  const auto is_set = [](bool h) { return h; };
  if (layout.host_count() == 1 && backends.local && (backends.local_alone || !backends.global)) {
    plan.usual = backends.local;
    plan.kind = "local";
  } else {
    const bool two_levels = layout.host_count() > 1 && layout.size() > layout.host_count();
    plan.levels = two_levels && std::ranges::any_of(backends.hierarchical, is_set);
    if (!plan.levels || !std::ranges::all_of(backends.hierarchical, is_set)) {
      plan.usual = backends.global;
      plan.kind = "flat";
    }
  }
  for (const auto& backend : backends.host_routes)
    if (backend) plan.special[special_kind(*backend)] = backend;
  return plan;
}

}  // namespace

SetComms::SetComms(const Backends& backends, Layout layout, const std::string& key, plugins::Store& store,
                   int64_t deadline_ns, std::shared_ptr<SetComms> parent)
    : layout_(std::move(layout)), parent_(std::move(parent)), driver_(backends.driver) {
  const Plan plan = plan_of(backends, layout_);
  // All members create the communicators in this order: within the host, between hosts, flat.
  Lowering* const levels = plan.levels ? hierarchy(backends, key, store, deadline_ns) : nullptr;
  std::map<std::string, Lowering*> whole;
  const auto add = [&](const std::string& kind, const std::shared_ptr<plugins::Backend>& backend) {
    whole[kind] = single(create_whole(backend, kind, key, store, deadline_ns), backends, true);
  };
  if (plan.usual) add(plan.kind, plan.usual);
  for (const auto& [kind, backend] : plan.special) add(kind, backend);
  for (size_t coll = 0; coll < lowering_of_.size(); ++coll) {
    if (const auto& backend = backends.host_routes[coll]) {
      lowering_of_[coll] = whole.at(special_kind(*backend));
      carriers_[coll] = backend->name();
    } else if (levels && (backends.hierarchical[coll] || !plan.usual)) {
      lowering_of_[coll] = levels;
      carriers_[coll] = backends.local->name() + " x " + backends.global->name();
    } else {
      lowering_of_[coll] = whole.at(plan.kind);
      carriers_[coll] = plan.usual->name();
    }
  }
  if (!parent_) return;
  for (const auto& [type, device] : parent_->devices_) {
    if (device->whole().empty()) continue;
    add_device(type, std::make_shared<SetDevice>(backends, backends.devices->known(type), *this, key + "/device", store,
                                                 deadline_ns, device.get()));
  }
}

// In the order in which the constructor makes the communicators of a part.
std::vector<std::pair<std::string, plugins::Communicator*>> SetComms::split_off(const Backends& backends,
                                                                                const Layout& part) const {
  std::vector<std::pair<std::string, plugins::Communicator*>> found;
  const Plan plan = plan_of(backends, part);
  const auto look = [&](const std::string& kind, const std::shared_ptr<plugins::Backend>& backend) {
    const auto at = whole_.find(kind);
    if (at != whole_.end() && backend->splits()) found.emplace_back(kind, at->second);
  };
  if (plan.usual) look(plan.kind, plan.usual);
  for (const auto& [kind, backend] : plan.special) look(kind, backend);
  return found;
}

bool SetComms::splits(const Backends& backends, const Layout& part) const {
  return !split_off(backends, part).empty() ||
         std::ranges::any_of(devices_, [](const auto& device) { return !device.second->whole().empty(); });
}

void SetComms::take_part(const Backends& backends, const Layout& part, const std::string& key, plugins::Store& store,
                         int64_t deadline_ns) {
  for (const auto& [kind, comm] : split_off(backends, part))
    split_comm(part, false, *comm, key + "/" + kind, store, deadline_ns, {}, driver_);
  for (const auto& [type, device] : devices_) device->take_part(part, key + "/device", store, deadline_ns, driver_);
}

SetComms::~SetComms() = default;

std::unique_ptr<plugins::Communicator> create_comm(const Layout& layout,
                                                   const std::shared_ptr<plugins::Backend>& backend,
                                                   const std::vector<int32_t>& set_ranks, const std::string& key,
                                                   plugins::Store& store, int64_t deadline_ns,
                                                   const plugins::OpenDevice& device,
                                                   std::shared_ptr<plugins::DriverRecord> driver) {
  std::vector<int32_t> ranks, hosts;
  int32_t me = -1;
  for (int32_t r : set_ranks) {
    if (r == layout.me) me = static_cast<int32_t>(ranks.size());
    ranks.push_back(layout.members[static_cast<size_t>(r)]);
    hosts.push_back(layout.host_of[static_cast<size_t>(r)]);
  }
  return backend->create_comm(key, store, ranks, hosts, me, deadline_ns, nullptr, device, std::move(driver));
}

std::unique_ptr<plugins::Communicator> split_comm(const Layout& layout, bool member, plugins::Communicator& parent,
                                                  const std::string& key, plugins::Store& store, int64_t deadline_ns,
                                                  const plugins::OpenDevice& device,
                                                  std::shared_ptr<plugins::DriverRecord> driver) {
  // The layout of a set is equal on all its members; `me` of another rank means nothing.
  const int32_t me = member ? layout.me : 0;
  std::vector<int32_t> ranks, hosts;
  if (member) ranks = layout.members, hosts = layout.host_of;
  auto backend = parent.shared_backend();
  return backend->split_comm(parent, key, store, ranks, hosts, me, deadline_ns, device, std::move(driver));
}

plugins::Communicator* SetComms::keep(std::unique_ptr<plugins::Communicator> made) {
  std::lock_guard lock(mutex_);
  if (aborted_) made->abort();
  comms_.push_back(std::move(made));
  return comms_.back().get();
}

plugins::Communicator* SetComms::create(const std::shared_ptr<plugins::Backend>& backend,
                                        const std::vector<int32_t>& set_ranks, const std::string& key,
                                        plugins::Store& store, int64_t deadline_ns) {
  return keep(create_comm(layout_, backend, set_ranks, key, store, deadline_ns, {}, driver_));
}

plugins::Communicator* SetComms::create_whole(const std::shared_ptr<plugins::Backend>& backend, const std::string& kind,
                                              const std::string& key, plugins::Store& store, int64_t deadline_ns) {
  if (parent_ && backend->splits())
    if (const auto of_parent = parent_->whole_.find(kind); of_parent != parent_->whole_.end())
      if (auto made = split_comm(layout_, true, *of_parent->second, key + "/" + kind, store, deadline_ns, {}, driver_))
        return whole_[kind] = keep(std::move(made));
  std::vector<int32_t> all_ranks;
  for (int32_t r = 0; r < layout_.size(); ++r) all_ranks.push_back(r);
  return whole_[kind] = create(backend, all_ranks, key + "/" + kind, store, deadline_ns);
}

Lowering* SetComms::single(plugins::Communicator* comm, const Backends& backends, bool alike) {
  auto direct = std::make_unique<DirectLowering>(*comm);
  EmulationPolicy policy = backends.emulation;
  policy.alike = alike;
  auto emulated = std::make_unique<EmulatedLowering>(*direct, *comm, *backends.math, std::move(policy));
  lowerings_.push_back(std::move(direct));
  lowerings_.push_back(std::move(emulated));
  alone_[lowerings_.back().get()] = comm;
  return lowerings_.back().get();
}

Lowering* SetComms::hierarchy(const Backends& backends, const std::string& key, plugins::Store& store,
                              int64_t deadline_ns) {
  Lowering *local = nullptr, *cross = nullptr;
  const auto& neighbours = layout_.neighbours();
  if (neighbours.size() > 1)
    local = single(
        create(backends.local, neighbours, key + "/host/" + std::to_string(layout_.my_host()), store, deadline_ns),
        backends, false);
  const int32_t lane = layout_.my_local();
  if (lane < layout_.lanes) {
    std::vector<int32_t> peers;
    for (const auto& host : layout_.hosts) peers.push_back(host[static_cast<size_t>(lane)]);
    cross = single(create(backends.global, peers, key + "/lane/" + std::to_string(lane), store, deadline_ns), backends,
                   false);
  }
  // The same on all members, also on those that have no communicator of a level.
  HierarchicalLowering::Settings settings;
  if (backends.overlap_levels && backends.local->returns_at_once() && backends.global->returns_at_once())
    settings.chunk_bytes = HierarchicalLowering::chunk_bytes_for(layout_);
  settings.phase = backends.local->tag() + "_" + backends.global->tag() + "_ALLREDUCE";
  lowerings_.push_back(
      std::make_unique<HierarchicalLowering>(layout_, local, cross, *backends.math, std::move(settings)));
  return lowerings_.back().get();
}

plugins::Communicator* SetComms::window_comm(std::string* why) const {
  const auto at = alone_.find(lowering_of_[HVD_ALLREDUCE]);
  if (at == alone_.end()) {
    *why = "its allreduces go over several communicators (within hosts, and between hosts)";
  } else if (layout_.size() == 1) {
    *why = "it has one rank";
  } else if (!at->second->has_windows()) {
    *why = "the backend " + at->second->backend().name() + " has no windows";
  } else {
    return at->second;
  }
  return nullptr;
}

bool SetComms::sends(int32_t dtype) const {
  Lowering* const t = lowering_of_[HVD_SEND];
  return t == lowering_of_[HVD_RECV] && t->serves_message(HVD_SEND, dtype) && t->serves_message(HVD_RECV, dtype);
}

void SetComms::abort() noexcept {
  const auto next = [this](size_t n) {  // those that are added later are aborted by the thread that adds them
    std::lock_guard lock(mutex_);
    aborted_ = true;
    return n < comms_.size() ? comms_[n].get() : nullptr;
  };
  for (size_t n = 0; plugins::Communicator* const comm = next(n); ++n) comm->abort();
  std::unique_lock lock(mutex_);
  for (const auto& [type, device] : devices_) {  // the elements of a map stay where they are
    const std::shared_ptr<SetDevice> kept = device;
    lock.unlock();
    kept->abort();
    lock.lock();
  }
}

SetDevice* SetComms::device(const std::string& type) const {
  const auto at = devices_.find(type);
  return at == devices_.end() ? nullptr : at->second.get();
}

void SetComms::add_device(const std::string& type, std::shared_ptr<SetDevice> made) {
  std::lock_guard lock(mutex_);
  if (aborted_) made->abort();
  devices_[type] = std::move(made);
}

}  // namespace hvd::dataplane
