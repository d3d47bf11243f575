// The variables of the simulated CUDA and NCCL.
#include "runtime.h"

namespace sim {

const Names kNames = {"SIM_CUDA_DEVICES", "CUDA_VISIBLE_DEVICES", "SIM_CUDA_DEVICE_BYTES",
                      "SIM_CUDA_MEMORY",  "SIM_CUDA_DELAY_US",    "SIM_NCCL_TIMEOUT_S"};

}  // namespace sim
