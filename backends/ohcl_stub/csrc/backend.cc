// The backend's name and its communicator class. HVD_BACKEND defines hvd_backend_entry_v1 from them.
#include "ohcl_comm.h"

HVD_BACKEND(ohcl_stub, hvd::NoDevice, OhclComm)
