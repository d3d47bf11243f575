// A backend without a device table whose communicators work on foreign devices, and which knows facts about itself.
#include <hvd/backend.hpp>

namespace {

struct ForeignComm : hvd::Comm<ForeignComm> {
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_MEM_DEVICE;
  static constexpr const char* device_types = "toy";
  static constexpr const char* version = "1.0";
  explicit ForeignComm(const hvd::CommInit& init) : Comm(init), device_(init.device), api_(init.device_api) {
    if ((device_ == nullptr) != (api_ == nullptr)) throw hvd::Error(HVD_E_INVALID, "a device and its table belong");
    if (api_ && std::string(api_->device_type) != "toy")
      throw hvd::Error(HVD_E_INVALID, "the device is not of type toy");
  }

  static std::string info(const std::string& key) {
    if (key == "library") return "Foreign \xff 1.0";
    if (key == "long") return std::string(5000, 'x');
    if (key == "broken") throw hvd::Error(HVD_E_DEVICE, "it broke");
    return "";
  }

  hvd_coll_caps query_made(const hvd::Coll& c) const {
    if (api_ && c.kind() == HVD_ALLGATHER) throw hvd::Error(HVD_E_UNSUPPORTED, "no gathering on a toy");
    hvd_coll_caps caps{};
    caps.support = HVD_NATIVE;
    caps.alignment = api_ ? 64 : 8;
    return caps;
  }

  hvd::Work allreduce(const hvd::Coll&) { return hvd::Work::done(); }
  hvd::Work allgather(const hvd::Coll&) { return hvd::Work::done(); }

 private:
  hvd_device device_;
  const hvd_device_api* api_;
};

}  // namespace

HVD_BACKEND(foreign_device, hvd::NoDevice, ForeignComm)
