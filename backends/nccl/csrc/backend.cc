// The backend's name, its device class and its communicator class. HVD_BACKEND defines hvd_backend_entry_v1 from them.
#include <hvd/backend.hpp>

#include "cuda_device.h"
#include "nccl_comm.h"

HVD_BACKEND(nccl, CudaDevice, NcclComm)
