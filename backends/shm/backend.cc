// The shm backend: collectives between processes of one host, and the host device itself.
#include "host_kernels/device_cpu.h"
#include "shm_comm.h"

HVD_BACKEND(shm, hvd::host_kernels::CpuDevice, hvd::shm::ShmComm)
