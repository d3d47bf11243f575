// The table that makes up this backend, beside the host device, for backend.cc to put together.
#pragma once

#include "hvd/backend_abi.h"

namespace hvd::tcp {

extern const hvd_comm_api kCommunicator;  // comm_api.cc

}  // namespace hvd::tcp
