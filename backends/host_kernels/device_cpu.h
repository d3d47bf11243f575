// The host device "cpu", which every backend for host memory has. Any thread.
#pragma once

#include "hvd/backend_abi.h"

namespace hvd::host_kernels {

// The device class for HVD_BACKEND. Its table is written by hand: unlike a vendor's device it takes a NULL stream.
struct CpuDevice {
  static const hvd_device_api* table();
};

}  // namespace hvd::host_kernels
