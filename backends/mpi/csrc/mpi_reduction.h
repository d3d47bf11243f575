// The reductions that MPI has, and those that it carries out with arithmetic of this backend.
#pragma once

#include <cstdint>

#include "mpi_abi.h"

// Is this reduction of this type served in host memory? AVG of integers needs an exact sum, which no MPI type holds.
bool mpi_reduces(int32_t dtype, int32_t op);
// ... by MPI alone, so that it also works in memory that only MPI can read?
bool mpi_reduces_alone(int32_t dtype, int32_t op);
// Are factors applied to this type? Those of integers are left to the host.
bool mpi_scales(int32_t dtype);

// The MPI_Op; created when it is first needed. For HVD_AVG that of the sum.
Handle mpi_op(int32_t dtype, int32_t op);
