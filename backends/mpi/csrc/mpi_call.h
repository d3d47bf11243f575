// One MPI operation with its arguments, ready to be made in either form.
#pragma once

#include <cstdint>
#include <hvd/backend.hpp>
#include <vector>

#include "mpi_abi.h"

// The vectors must outlive the operation: MPI reads them until it is complete.
struct MpiCall {
  int32_t kind = HVD_BARRIER;
  const void* in = nullptr;
  void* out = nullptr;
  int in_count = 0, out_count = 0;  // elements of `type`; of each rank, for allgather, reducescatter and alltoall
  Handle type = 0, op = 0;
  int root = 0, peer = 0;
  std::vector<int> in_counts, in_places, out_counts, out_places;  // a number for each rank: the v form

  // Begins it; returns at once. What MPI answers.
  int begin(Handle comm, Handle* request) const;
  // Makes it; returns when it is complete. Collectives only.
  int make(Handle comm) const;
};
