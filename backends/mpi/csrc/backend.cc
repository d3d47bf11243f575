// The backend's name and its communicator class; hvd_backend_entry_v1 comes of it.
#include <hvd/backend.hpp>

#include "mpi_comm.h"

HVD_BACKEND(mpi, hvd::NoDevice, MpiComm)
