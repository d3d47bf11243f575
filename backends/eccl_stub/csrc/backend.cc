// The backend's name, its device class and its communicator class. HVD_BACKEND defines hvd_backend_entry_v1 from them.
//
// Passes: L0.symbol, L0.tables
#include <hvd/backend.hpp>

#include "eccl_comm.h"
#include "gcu_device.h"

HVD_BACKEND(eccl_stub, GcuDevice, EcclComm)
