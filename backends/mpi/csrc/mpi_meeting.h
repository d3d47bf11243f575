// How the ranks of a communicator find each other in MPI.
#pragma once

#include <hvd/backend.hpp>

#include "mpi_abi.h"

struct Meeting {
  Handle comm = 0;            // over the members, in their order; with MPI_ERRORS_RETURN
  bool any_thread = false;    // on every member any thread may call MPI
  bool reads_device = false;  // every member's MPI reads the device's memory
  int64_t blocking_from = 0;  // as rank 0 has it
};

// Begins MPI where need be, and meets the others: first through the store, where each says who it is in MPI_COMM_WORLD
// (a job's ranks need not be MPI's), then in MPI. Throws what every member throws: UNAVAILABLE when MPI cannot be used
// by one of them or does not see them as one job, TIMEOUT when one has not come by the deadline.
Meeting meet(const hvd::CommInit& init, int64_t blocking_from);
