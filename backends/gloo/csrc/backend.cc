// The backend's name and its communicator class; hvd_backend_entry_v1 comes of it.
#include <hvd/backend.hpp>

#include "gloo_comm.h"

HVD_BACKEND(gloo, hvd::NoDevice, hvd::gloo_backend::GlooComm)
