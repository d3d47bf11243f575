// The host device "cpu", which every backend for host memory brings along. Any thread.
#pragma once

#include "hvd/backend_abi.h"

namespace hvd::host_kernels {

extern const hvd_device_api kCpuDevice;

}  // namespace hvd::host_kernels
