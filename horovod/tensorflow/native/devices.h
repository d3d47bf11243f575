// Which kernels serve a device type, and how the engine reaches its memory. Types are known only at run time.
#pragma once

#include <hvd/frontend_abi.h>

#include <string>

#include "tf_api.h"

namespace hvd_tf {

// How a kernel's tensors are given to the engine.
enum class Way {
  kHost,       // in host memory; TensorFlow copies where they are on a device
  kPluggable,  // where they are, with the stream of a PluggableDevice
  kCuda        // where they are, with the stream that TensorFlow computes in on its own CUDA devices
};

struct Device {
  std::string type;  // as the engine calls it; "" for host memory
  Way way = Way::kHost;
};

// Slot 0 is host memory; the others are given out by claim_slot, and never change.
inline constexpr int kSlots = 5;
const Device& device_in(int slot);

// The slot for a TensorFlow device type ("GPU", "XPU") whose memory the engine reaches, 0 where kernels are to use host
// memory: the engine does not serve it, or nothing tells the stream.
int claim_slot(const char* tf_type, const hvd_fe_table& table);

// Whether claim_slot("GPU") could give a stream here.
bool cuda_stream_known();

// The native stream of a kernel's run. `status` is set where there is none.
void* stream_of(const Device& device, TF_OpKernelContext* context, TF_Status* status);

}  // namespace hvd_tf
