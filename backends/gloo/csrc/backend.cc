// The backend's name and its communicator class. HVD_BACKEND defines hvd_backend_entry_v1 from them.
#include <hvd/backend.hpp>

#include "gloo_comm.h"

HVD_BACKEND(gloo, hvd::NoDevice, hvd::gloo_backend::GlooComm)
