// See device_types.h.
#include "engine/dataplane/device_types.h"

#include <algorithm>
#include <utility>

#include "engine/calls/process_sets.h"

namespace hvd::dataplane {

DeviceRoutes::DeviceRoutes(std::string type, std::shared_ptr<plugins::Backend> table, int32_t ordinal,
                           ByCollective routes, std::shared_ptr<plugins::Backend> within, std::string choice)
    : type_(std::move(type)),
      table_(std::move(table)),
      ordinal_(ordinal),
      routes_(std::move(routes)),
      within_(std::move(within)),
      choice_(std::move(choice)) {
  if (!table_ || table_->device_type() != type_) {
    throw plugins::BackendError(
        HVD_E_UNSUPPORTED, 0, 0,
        "horovod: backend '" + (table_ ? table_->name() : "") + "' was chosen to open devices of type '" + type_ +
            "', but its device table is " +
            (table_ && table_->has_device() ? "for '" + table_->device_type() + "'" : "missing") +
            "; choose a backend that has a device table for that type (UNSUPPORTED)");
  }
}

DeviceRoutes::DeviceRoutes(std::shared_ptr<DeviceRoutes> same_device, ByCollective routes,
                           std::shared_ptr<plugins::Backend> within)
    : type_(same_device->type_),
      table_(same_device->table_),
      ordinal_(same_device->ordinal_),
      routes_(std::move(routes)),
      within_(std::move(within)),
      same_device_(std::move(same_device)) {}

std::shared_ptr<plugins::Device> DeviceRoutes::open(const calls::Tensor& tensor) {
  if (same_device_) return same_device_->open(tensor);
  int32_t ordinal = tensor.device_id;
  if (ordinal < 0) ordinal = tensor.data ? plugins::Device::owner(*table_, tensor.data) : -1;
  return ordinal < 0 ? open() : open(ordinal);
}

std::shared_ptr<plugins::Device> DeviceRoutes::open(int32_t ordinal) {
  std::lock_guard lock(mutex_);
  if (!device_) device_ = plugins::Device::open(table_, ordinal);
  if (device_->ordinal() == ordinal) return device_;
  throw calls::InvalidRequest("horovod: this tensor is on " + type_ + " device " + std::to_string(ordinal) +
                              ", but this process works on device " + std::to_string(device_->ordinal()) +
                              " already; one device per process and type is possible. Choose the device by the local "
                              "rank before the first operation, or move the tensor there.");
}

std::shared_ptr<plugins::Device> DeviceRoutes::open() {
  if (same_device_) return same_device_->open();
  std::lock_guard lock(mutex_);
  if (device_) return device_;
  // The launcher may show each rank one device only; its ordinal is 0 then.
  const int32_t ordinal = ordinal_ % std::max(plugins::Device::count(*table_), 1);
  return device_ = plugins::Device::open(table_, ordinal);
}

std::shared_ptr<plugins::Device> DeviceRoutes::opened() const {
  if (same_device_) return same_device_->opened();
  std::lock_guard lock(mutex_);
  return device_;
}

void DeviceRoutes::abandon() noexcept {
  if (device_) device_->abandon();
}

void DeviceTypes::add(Routes routes) {
  std::lock_guard lock(mutex_);
  types_[routes->type()] = std::move(routes);
}

DeviceTypes::Routes DeviceTypes::find(const std::string& type) {
  if (auto routes = known(type)) return routes;
  if (job_) return job_->find(type);
  if (!search_) return nullptr;
  {
    std::lock_guard lock(mutex_);
    if (why_not_.contains(type)) return nullptr;
  }
  auto [routes, why] = search_(type);
  std::lock_guard lock(mutex_);
  if (!routes) {
    why_not_[type] = std::move(why);
    return nullptr;
  }
  return types_.emplace(type, std::move(routes)).first->second;  // another thread may have been first
}

DeviceTypes::Routes DeviceTypes::known(const std::string& type) const {
  {
    std::lock_guard lock(mutex_);
    if (const auto at = types_.find(type); at != types_.end()) return at->second;
  }
  return job_ ? job_->known(type) : nullptr;
}

std::vector<DeviceTypes::Routes> DeviceTypes::all() const {
  std::map<std::string, Routes> found;
  {
    std::lock_guard lock(mutex_);
    found = types_;
  }
  if (job_)
    for (auto& routes : job_->all()) found.emplace(routes->type(), routes);
  std::vector<Routes> list;
  for (auto& [type, routes] : found) list.push_back(std::move(routes));
  return list;
}

std::string DeviceTypes::why_not(const std::string& type) const {
  if (job_) return job_->why_not(type);
  std::lock_guard lock(mutex_);
  const auto at = why_not_.find(type);
  return at == why_not_.end() ? "" : at->second;
}

void DeviceTypes::before_fork() { mutex_.lock(); }

void DeviceTypes::after_fork() noexcept { mutex_.unlock(); }

void DeviceTypes::abandon() noexcept {
  for (auto& [type, routes] : types_) routes->abandon();
}

void agree_on_choice(const DeviceRoutes& routes, int32_t rank, const std::vector<int32_t>& members,
                     const std::string& key, plugins::Store& store, int64_t deadline_ns) {
  const std::string& own = routes.choice();
  if (own.empty() || members.size() < 2) return;
  const std::string prefix = key + "/" + routes.type() + "#choice/", verdict_key = prefix + "verdict";
  std::string verdict;
  if (rank == 0) {
    for (size_t r = 1; r < members.size(); ++r) {
      const std::string other = store.get(prefix + std::to_string(r), deadline_ns);
      store.del(prefix + std::to_string(r));
      if (other != own && verdict.empty())
        verdict =
            "rank " + std::to_string(members[0]) + ": " + own + "; rank " + std::to_string(members[r]) + ": " + other;
    }
    store.set(verdict_key, verdict);
  } else {
    store.set(prefix + std::to_string(rank), own);
    verdict = store.get(verdict_key, deadline_ns);
    const std::string read = prefix + "read";
    if (store.add(read, 1) == static_cast<int64_t>(members.size()) - 1) {
      store.del(verdict_key);
      store.del(read);
    }
  }
  if (verdict.empty()) return;
  throw plugins::BackendError(HVD_E_INVALID, 0, 0,
                              "horovod: ranks do not agree on the backend for device type '" + routes.type() + "'.  " +
                                  verdict +
                                  "\n  fix: install the same versions on all hosts, or name the backend: "
                                  "HOROVOD_BACKEND=" +
                                  routes.type() + "=NAME");
}

}  // namespace hvd::dataplane
