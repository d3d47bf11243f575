// The parts that this backend shares with others are used unqualified throughout it.
#pragma once

#include "host_kernels/support.h"

namespace hvd::tcp {

using namespace hvd::host_kernels;

}  // namespace hvd::tcp
