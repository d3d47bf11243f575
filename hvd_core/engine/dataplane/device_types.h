// How the engine serves a device type: the backend whose table opens the device, and the route of each collective (the
// backend whose communicators serve it). The device is opened at its first use; init() opens no device. Any thread.
#pragma once

#include <hvd/backend_abi.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/calls/request.h"
#include "engine/plugins/backend.h"
#include "engine/plugins/device.h"
#include "engine/plugins/host_api.h"

namespace hvd::dataplane {

class DeviceRoutes {
 public:
  using ByCollective = std::array<std::shared_ptr<plugins::Backend>, HVD_COLL_COUNT>;

  // `ordinal`: the device to open if no tensor names one. `routes`: by HVD_* collective; null: staged through host
  // memory. `within`: the backend that reduces on the device within hosts, where a large allreduce goes over two
  // levels; null: on one level. `choice`: see choice(). Throws plugins::BackendError if `table` has no device table for
  // the type.
  DeviceRoutes(std::string type, std::shared_ptr<plugins::Backend> table, int32_t ordinal, ByCollective routes,
               std::shared_ptr<plugins::Backend> within, std::string choice = {});

  // Other routes to the device of `same_device`: of a process set with backends of its own.
  DeviceRoutes(std::shared_ptr<DeviceRoutes> same_device, ByCollective routes,
               std::shared_ptr<plugins::Backend> within);

  const std::string& type() const { return type_; }
  const ByCollective& routes() const { return routes_; }
  const std::shared_ptr<plugins::Backend>& within() const { return within_; }
  const std::shared_ptr<plugins::Backend>& table() const { return table_; }
  // The backends and their versions as a text by which ranks compare them; empty: they were compared in init().
  const std::string& choice() const { return choice_; }

  // The one device of this type in this process, for a tensor on it. Throws calls::InvalidRequest if the tensor is on
  // another device of the type, plugins::BackendError if the device cannot be opened.
  std::shared_ptr<plugins::Device> open(const calls::Tensor& tensor);
  // The same for a rank that takes part without a tensor, because it has joined.
  std::shared_ptr<plugins::Device> open();
  // The device; null before its first use.
  std::shared_ptr<plugins::Device> opened() const;
  // Called in a forked child. Takes no lock: another thread may have held it at the fork.
  void abandon() noexcept;

 private:
  std::shared_ptr<plugins::Device> open(int32_t ordinal);

  const std::string type_;
  const std::shared_ptr<plugins::Backend> table_;
  const int32_t ordinal_;
  const ByCollective routes_;
  const std::shared_ptr<plugins::Backend> within_;
  const std::string choice_;
  const std::shared_ptr<DeviceRoutes> same_device_;  // opens the device; null: this object does
  mutable std::mutex mutex_;
  std::shared_ptr<plugins::Device> device_;
};

// The device types that an engine serves, each with its backends. Those that a setting names are known from the start;
// the backends of another type are looked for when the first tensor of that type comes. Any thread.
class DeviceTypes {
 public:
  using Routes = std::shared_ptr<DeviceRoutes>;
  // What a search has found: null and the reason if no backend serves the type.
  using Found = std::pair<Routes, std::string>;
  // Runs the code of plugins, which may take seconds. Called without a lock, and not again after an answer.
  using Search = std::function<Found(const std::string& type)>;

  explicit DeviceTypes(Search search = nullptr) : search_(std::move(search)) {}
  // Of a process set with backends of its own: routes that are not added here are those of `job`.
  explicit DeviceTypes(std::shared_ptr<DeviceTypes> job) : job_(std::move(job)) {}

  void add(Routes routes);
  // The routes of a type, after a search if they are not known yet. Null: no backend serves the type.
  Routes find(const std::string& type);
  // The same without a search.
  Routes known(const std::string& type) const;
  // All that are known.
  std::vector<Routes> all() const;
  // Why a search has found nothing; empty before it, or if it has found something.
  std::string why_not(const std::string& type) const;
  // Around a fork of this process, so that the child finds the lists whole and the lock free.
  void before_fork();
  void after_fork() noexcept;
  // In a forked child, before after_fork().
  void abandon() noexcept;

 private:
  const Search search_;
  const std::shared_ptr<DeviceTypes> job_;
  mutable std::mutex mutex_;
  std::map<std::string, Routes> types_;
  std::map<std::string, std::string> why_not_;
};

// Compares the choices of the ranks of a set, which call it together, for routes that a search has found: those that a
// setting names were compared in init(). Throws plugins::BackendError on all of them if the choices differ.
void agree_on_choice(const DeviceRoutes& routes, int32_t rank, const std::vector<int32_t>& members,
                     const std::string& key, plugins::Store& store, int64_t deadline_ns);

}  // namespace hvd::dataplane
