// See set_comms.h.
#include "engine/data/set_comms.h"

#include <algorithm>
#include <utility>

#include "engine/data/direct.h"
#include "engine/data/hierarchical.h"
#include "engine/data/set_device.h"

namespace hvd::data {

SetComms::SetComms(const Backends& backends, Layout layout, const std::string& key, plugin::Store& store,
                   int64_t deadline_ns)
    : layout_(std::move(layout)), records_(backends.records) {
  std::vector<int32_t> all_ranks;
  for (int32_t r = 0; r < layout_.size(); ++r) all_ranks.push_back(r);
  const bool one_host = layout_.host_count() == 1;
  if (one_host && backends.local && (backends.local_alone || !backends.global)) {
    transport_of_.fill(single(create(backends.local, all_ranks, key + "/local", store, deadline_ns), backends, true));
  } else {
    // All members create the communicators in this order: within the host, between hosts, flat.
    const bool two_levels = !one_host && layout_.size() > layout_.host_count();
    const bool some =
        two_levels && std::any_of(backends.hierarchical.begin(), backends.hierarchical.end(), [](bool h) { return h; });
    const bool all =
        some && std::all_of(backends.hierarchical.begin(), backends.hierarchical.end(), [](bool h) { return h; });
    Transport* levels = some ? hierarchy(backends, key, store, deadline_ns) : nullptr;
    Transport* flat =
        all ? nullptr : single(create(backends.global, all_ranks, key + "/flat", store, deadline_ns), backends, true);
    for (size_t coll = 0; coll < transport_of_.size(); ++coll)
      transport_of_[coll] = some && backends.hierarchical[coll] ? levels : flat;
  }
  std::map<const plugin::Backend*, Transport*> special;
  for (size_t coll = 0; coll < transport_of_.size(); ++coll) {
    const auto& backend = backends.host_routes[coll];
    if (!backend) continue;
    Transport*& transport = special[backend.get()];
    if (!transport)
      transport =
          single(create(backend, all_ranks, key + "/only/" + backend->name(), store, deadline_ns), backends, true);
    transport_of_[coll] = transport;
  }
}

SetComms::~SetComms() = default;

std::unique_ptr<plugin::Communicator> create_comm(const Layout& layout, const std::shared_ptr<plugin::Backend>& backend,
                                                  const std::vector<int32_t>& set_ranks, const std::string& key,
                                                  plugin::Store& store, int64_t deadline_ns,
                                                  const plugin::OpenDevice& device,
                                                  std::shared_ptr<plugin::CallRecords> records) {
  std::vector<int32_t> ranks, hosts;
  int32_t me = -1;
  for (int32_t r : set_ranks) {
    if (r == layout.me) me = static_cast<int32_t>(ranks.size());
    ranks.push_back(layout.members[static_cast<size_t>(r)]);
    hosts.push_back(layout.host_of[static_cast<size_t>(r)]);
  }
  return backend->create_comm(key, store, ranks, hosts, me, deadline_ns, nullptr, device, std::move(records));
}

plugin::Communicator* SetComms::create(const std::shared_ptr<plugin::Backend>& backend,
                                       const std::vector<int32_t>& set_ranks, const std::string& key,
                                       plugin::Store& store, int64_t deadline_ns) {
  auto comm = create_comm(layout_, backend, set_ranks, key, store, deadline_ns, {}, records_);
  std::lock_guard lock(mutex_);
  if (aborted_) comm->abort(records_ ? &records_->creating : nullptr);
  comms_.push_back(std::move(comm));
  return comms_.back().get();
}

Transport* SetComms::single(plugin::Communicator* comm, const Backends& backends, bool alike) {
  auto direct = std::make_unique<DirectTransport>(*comm);
  EmulationPolicy policy = backends.emulation;
  policy.alike = alike;
  auto emulated = std::make_unique<EmulatedTransport>(*direct, *comm, *backends.math, std::move(policy));
  transports_.push_back(std::move(direct));
  transports_.push_back(std::move(emulated));
  return transports_.back().get();
}

Transport* SetComms::hierarchy(const Backends& backends, const std::string& key, plugin::Store& store,
                               int64_t deadline_ns) {
  Transport *local = nullptr, *cross = nullptr;
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
  transports_.push_back(std::make_unique<HierarchicalTransport>(layout_, local, cross, *backends.math));
  return transports_.back().get();
}

void SetComms::abort(plugin::CallRecord* record) noexcept {
  const auto next = [this](size_t n) {  // those that are added later are aborted by the thread that adds them
    std::lock_guard lock(mutex_);
    aborted_ = true;
    return n < comms_.size() ? comms_[n].get() : nullptr;
  };
  for (size_t n = 0; plugin::Communicator* const comm = next(n); ++n) comm->abort(record);
  std::unique_lock lock(mutex_);
  for (const auto& [type, device] : devices_) {  // the elements of a map stay where they are
    const std::shared_ptr<SetDevice> kept = device;
    lock.unlock();
    kept->abort(record);
    lock.lock();
  }
}

SetDevice* SetComms::device(const std::string& type) const {
  const auto at = devices_.find(type);
  return at == devices_.end() ? nullptr : at->second.get();
}

void SetComms::add_device(const std::string& type, std::shared_ptr<SetDevice> made) {
  std::lock_guard lock(mutex_);
  if (aborted_) made->abort(records_ ? &records_->driving : nullptr);
  devices_[type] = std::move(made);
}

}  // namespace hvd::data
