// The communicators behind callers' handles. Any thread.
#pragma once

#include <eccl.h>

#include "comm.h"

namespace sim {

// Null: no such communicator.
CommRef find_comm(ecclComm_t handle);
// First line of functions that use devices.
ecclResult_t enter_eccl();

}  // namespace sim
