// The device types for which kernels are registered, and where the stream of a kernel comes from. Device types are
// known only at run time.
#pragma once

#include <hvd/frontend_abi.h>

#include <atomic>
#include <string>

#include "tf_api.h"

namespace hvd_tf {

// Where the stream comes from that orders the engine's work on a kernel's tensors.
enum class StreamSource {
  kHostMemory,       // no stream: the tensors are in host memory, and TensorFlow has copied those of a device there
  kPluggableDevice,  // the stream of a PluggableDevice; the tensors are in the device's memory
  kCudaDevice        // the stream of TensorFlow's own CUDA device; the tensors are in the device's memory
};

struct Device {
  std::string type;  // the engine's name of it; "" for host memory
  StreamSource stream_source = StreamSource::kHostMemory;
  // Why kernels must not use host memory in the place of this device's memory in the job that runs; "" if they may.
  std::atomic<const char*> refusal{""};

  bool is_staged() const { return stream_source == StreamSource::kHostMemory && !type.empty(); }
};

// Slot 0 is host memory. claim_slot assigns the others, which never change, except for `refusal`.
inline constexpr int kSlots = 9;
const Device& device_in(int slot);

// The slot of a TensorFlow device type ("GPU", "XPU"); 0 if there are too many types. The slot is_staged() if the
// engine does not serve the device type, or if its streams cannot be found; `refusal` is for such a slot, and for the
// kernels that run from now on.
int claim_slot(const char* tf_type, const std::string& refusal, const hvd_fe_table& table);

// Whether claim_slot("GPU") could give a stream here.
bool cuda_stream_known();

// The native stream in which a kernel runs. Sets `status` to an error if it has no stream.
void* stream_of(const Device& device, TF_OpKernelContext* context, TF_Status* status);

}  // namespace hvd_tf
