// How the ranks of a communicator find each other in MPI.
#pragma once

#include <hvd/backend.hpp>

#include "mpi_abi.h"

struct Rendezvous {
  Handle comm = 0;            // over the members, in their order; with MPI_ERRORS_RETURN
  bool any_thread = false;    // on every member any thread may call MPI
  bool reads_device = false;  // every member's MPI reads the device's memory
  int64_t blocking_from = 0;  // rank 0's option
};

// Initialises MPI if necessary and finds the other members: first through the store, where each member tells its rank
// in MPI_COMM_WORLD (a job's ranks need not be MPI's), then in MPI. Every member throws the same: UNAVAILABLE if a
// member cannot use MPI or MPI does not see the members as one job, TIMEOUT if a member has not come by the deadline.
Rendezvous rendezvous(const hvd::CommInit& init, int64_t blocking_from);
