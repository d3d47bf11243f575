// How the engine serves a device type: the backend whose table opens the device, and the route of each collective (the
// backend whose communicators serve it). The device is opened at its first use; init() opens no device. Any thread.
#pragma once

#include <hvd/backend_abi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/plugin/backend.h"
#include "engine/plugin/device.h"
#include "engine/queue/request.h"

namespace hvd::data {

class DeviceRoutes {
 public:
  using ByCollective = std::array<std::shared_ptr<plugin::Backend>, HVD_COLL_COUNT>;

  // `ordinal`: the device to open if no tensor names one. `routes`: by HVD_* collective; null: staged through host
  // memory. `within`: the backend that reduces on the device within hosts, where a large allreduce goes over two
  // levels; null: on one level. `choice`: see choice(). Throws plugin::BackendError if `table` has no device table for
  // the type.
  DeviceRoutes(std::string type, std::shared_ptr<plugin::Backend> table, int32_t ordinal, ByCollective routes,
               std::shared_ptr<plugin::Backend> within, std::string choice = {});

  // Other routes to the device of `same_device`: of a process set with backends of its own.
  DeviceRoutes(std::shared_ptr<DeviceRoutes> same_device, ByCollective routes, std::shared_ptr<plugin::Backend> within);

  const std::string& type() const { return type_; }
  const ByCollective& routes() const { return routes_; }
  const std::shared_ptr<plugin::Backend>& within() const { return within_; }
  const std::shared_ptr<plugin::Backend>& table() const { return table_; }
  // The backends and their versions as a text by which ranks compare them; empty: they were compared in init().
  const std::string& choice() const { return choice_; }

  // The one device of this type in this process, for a tensor on it. Throws queue::InvalidRequest if the tensor is on
  // another device of the type, plugin::BackendError if the device cannot be opened.
  std::shared_ptr<plugin::Device> open(const queue::Tensor& tensor);
  // The same for a rank that takes part without a tensor, because it has joined.
  std::shared_ptr<plugin::Device> open();
  // The device; null before its first use.
  std::shared_ptr<plugin::Device> opened() const;
  // Called in a forked child. Takes no lock: another thread may have held it at the fork.
  void abandon() noexcept;

 private:
  std::shared_ptr<plugin::Device> open(int32_t ordinal);

  const std::string type_;
  const std::shared_ptr<plugin::Backend> table_;
  const int32_t ordinal_;
  const ByCollective routes_;
  const std::shared_ptr<plugin::Backend> within_;
  const std::string choice_;
  const std::shared_ptr<DeviceRoutes> same_device_;  // opens the device; null: this object does
  mutable std::mutex mutex_;
  std::shared_ptr<plugin::Device> device_;
};

}  // namespace hvd::data
