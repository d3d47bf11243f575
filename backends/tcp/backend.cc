// The tcp backend: collectives between processes on any hosts, and the host device itself.
#include "host_kernels/device_cpu.h"
#include "tcp_comm.h"

HVD_BACKEND(tcp, hvd::host_kernels::CpuDevice, hvd::tcp::TcpComm)
