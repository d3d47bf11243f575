// The tables that make up this backend, for backend.cc to put together.
#pragma once

#include "hvd/backend_abi.h"

namespace hvd::shm {

extern const hvd_device_api kCpuDevice;   // device_cpu.cc
extern const hvd_comm_api kCommunicator;  // comm_api.cc

}  // namespace hvd::shm
