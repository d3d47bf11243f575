// See device_routes.h.
#include "engine/data/device_routes.h"

#include <algorithm>
#include <utility>

#include "engine/queue/process_sets.h"

namespace hvd::data {

DeviceRoutes::DeviceRoutes(std::string type, std::shared_ptr<plugin::Backend> table, int32_t ordinal,
                           ByCollective routes, std::shared_ptr<plugin::Backend> within, std::string choice)
    : type_(std::move(type)),
      table_(std::move(table)),
      ordinal_(ordinal),
      routes_(std::move(routes)),
      within_(std::move(within)),
      choice_(std::move(choice)) {
  if (!table_ || table_->device_type() != type_) {
    throw plugin::BackendError(
        HVD_E_UNSUPPORTED, 0, 0,
        "horovod: backend '" + (table_ ? table_->name() : "") + "' was chosen to open devices of type '" + type_ +
            "', but its device table is " +
            (table_ && table_->has_device() ? "for '" + table_->device_type() + "'" : "missing") +
            "; choose a backend that has a device table for that type (UNSUPPORTED)");
  }
}

DeviceRoutes::DeviceRoutes(std::shared_ptr<DeviceRoutes> same_device, ByCollective routes,
                           std::shared_ptr<plugin::Backend> within)
    : type_(same_device->type_),
      table_(same_device->table_),
      ordinal_(same_device->ordinal_),
      routes_(std::move(routes)),
      within_(std::move(within)),
      same_device_(std::move(same_device)) {}

std::shared_ptr<plugin::Device> DeviceRoutes::open(const queue::Tensor& tensor) {
  if (same_device_) return same_device_->open(tensor);
  int32_t ordinal = tensor.device_id;
  if (ordinal < 0) ordinal = tensor.data ? plugin::Device::owner(*table_, tensor.data) : -1;
  return ordinal < 0 ? open() : open(ordinal);
}

std::shared_ptr<plugin::Device> DeviceRoutes::open(int32_t ordinal) {
  std::lock_guard lock(mutex_);
  if (!device_) device_ = plugin::Device::open(table_, ordinal);
  if (device_->ordinal() == ordinal) return device_;
  throw queue::InvalidRequest("horovod: this tensor is on " + type_ + " device " + std::to_string(ordinal) +
                              ", but this process works on device " + std::to_string(device_->ordinal()) +
                              " already; one device per process and type is possible. Choose the device by the local "
                              "rank before the first operation, or move the tensor there.");
}

std::shared_ptr<plugin::Device> DeviceRoutes::open() {
  if (same_device_) return same_device_->open();
  std::lock_guard lock(mutex_);
  if (device_) return device_;
  // The launcher may show each rank one device only; its ordinal is 0 then.
  const int32_t ordinal = ordinal_ % std::max(plugin::Device::count(*table_), 1);
  return device_ = plugin::Device::open(table_, ordinal);
}

std::shared_ptr<plugin::Device> DeviceRoutes::opened() const {
  if (same_device_) return same_device_->opened();
  std::lock_guard lock(mutex_);
  return device_;
}

void DeviceRoutes::abandon() noexcept {
  if (device_) device_->abandon();
}

}  // namespace hvd::data
