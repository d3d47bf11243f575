// Slots for device types, and the functions that find their streams. See devices.h.
#include "devices.h"

#include <array>
#include <cctype>
#include <mutex>
#include <set>

namespace hvd_tf {
namespace {

std::array<Device, kSlots> slots;
int n_slots = 1;
std::mutex slots_mutex;

// OpKernelContext::eigen_device<Eigen::GpuDevice>() const, which TensorFlow's guide for custom GPU operations names.
using EigenDevice = const void* (*)(const void*);
EigenDevice eigen_device() {
  static const auto function = reinterpret_cast<EigenDevice>(
      tf::symbol("_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v"));
  return function;
}

// A GpuDevice begins with a pointer to its StreamInterface, whose third virtual function (after two destructors) is
// `const cudaStream_t& stream() const`: the same in the Eigen of TensorFlow 2.15 and 2.21. Not tried on a GPU yet.
void* cuda_stream(TF_OpKernelContext* context) {
  const void* device = eigen_device()(context);
  void* const interface = *static_cast<void* const*>(device);
  using StreamFunction = void* const* (*)(const void*);
  return *(*static_cast<StreamFunction**>(interface))[2](interface);
}

}  // namespace

const Device& device_in(int slot) { return slots[static_cast<size_t>(slot)]; }

bool cuda_stream_known() { return eigen_device() != nullptr; }

int claim_slot(const char* tf_type, const std::string& refusal, const hvd_fe_table& table) {
  const bool cuda = std::string(tf_type) == "GPU";
  std::string type = cuda ? "cuda" : tf_type;
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool is_served = table.serves(type.c_str()) == 1 && (!cuda || cuda_stream_known());
  const std::lock_guard lock(slots_mutex);
  int slot = 1;
  while (slot < n_slots && slots[static_cast<size_t>(slot)].type != type) ++slot;
  if (slot == kSlots) return 0;
  Device& device = slots[static_cast<size_t>(slot)];
  if (slot == n_slots) {
    device.type = type;
    if (is_served) device.stream_source = cuda ? StreamSource::kCudaDevice : StreamSource::kPluggableDevice;
    ++n_slots;
  }
  // The texts stay: a kernel may still show the one of an earlier job.
  static std::set<std::string> texts;
  device.refusal = device.is_staged() ? texts.insert(refusal).first->c_str() : "";
  return slot;
}

void* stream_of(const Device& device, TF_OpKernelContext* context, TF_Status* status) {
  return device.stream_source == StreamSource::kCudaDevice ? cuda_stream(context) : tf::GetStream(context, status);
}

}  // namespace hvd_tf
