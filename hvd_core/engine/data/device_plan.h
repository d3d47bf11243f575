// A type of device as this engine serves it: whose device table opens it, and which collectives have a communicator
// that reads its memory. The device itself is opened at its first use: init() touches none. Any thread.
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

class DevicePlan {
 public:
  using Routes = std::array<std::shared_ptr<plugin::Backend>, HVD_COLL_COUNT>;

  // `ordinal`: the device that is opened where no tensor has said which. `routes`: by HVD_* collective; null: staged
  // through host memory. Throws plugin::BackendError when `table` has no device table for the type.
  DevicePlan(std::string type, std::shared_ptr<plugin::Backend> table, int32_t ordinal, Routes routes);

  const std::string& type() const { return type_; }
  const Routes& routes() const { return routes_; }
  const std::shared_ptr<plugin::Backend>& table() const { return table_; }

  // The one device of this type in this process, for a tensor that is on it. Throws queue::InvalidRequest when that is
  // on another one, plugin::BackendError when the device cannot be opened.
  std::shared_ptr<plugin::Device> open(const queue::Tensor& tensor);
  // The same for a rank that has to take part and has no tensor.
  std::shared_ptr<plugin::Device> open();
  // Null before the first use.
  std::shared_ptr<plugin::Device> opened() const;
  // In a forked child; takes no lock, because the fork may have come while another thread held it.
  void abandon() noexcept;

 private:
  std::shared_ptr<plugin::Device> open(int32_t ordinal);

  const std::string type_;
  const std::shared_ptr<plugin::Backend> table_;
  const int32_t ordinal_;
  const Routes routes_;
  mutable std::mutex mutex_;
  std::shared_ptr<plugin::Device> device_;
};

}  // namespace hvd::data
