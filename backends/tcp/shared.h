// The parts that this backend shares with others are used unqualified throughout it.
#pragma once

#include "host_kernels/support.h"
#include "wire_security/encryption.h"

namespace hvd::tcp {

using namespace hvd::host_kernels;
using namespace hvd::wire_security;

}  // namespace hvd::tcp
