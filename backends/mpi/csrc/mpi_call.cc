// See mpi_call.h.
#include "mpi_call.h"

#include "mpi_api.h"

namespace {
constexpr int kTag = 1;
}

int MpiCall::begin(Handle comm, Handle* request) const {
  const MpiApi& m = mpi();
  switch (kind) {
    case HVD_ALLREDUCE:
      return m.Iallreduce(in, out, in_count, type, op, comm, request);
    case HVD_REDUCE:
      return m.Ireduce(in, out, in_count, type, op, root, comm, request);
    case HVD_BROADCAST:
      return m.Ibcast(out, in_count, type, root, comm, request);
    case HVD_ALLGATHER:
      if (out_counts.empty()) return m.Iallgather(in, in_count, type, out, in_count, type, comm, request);
      return m.Iallgatherv(in, in_count, type, out, out_counts.data(), out_places.data(), type, comm, request);
    case HVD_REDUCESCATTER:
      if (out_counts.empty()) return m.Ireduce_scatter_block(in, out, out_count, type, op, comm, request);
      return m.Ireduce_scatter(in, out, out_counts.data(), type, op, comm, request);
    case HVD_ALLTOALL:
      if (out_counts.empty()) return m.Ialltoall(in, in_count, type, out, out_count, type, comm, request);
      return m.Ialltoallv(in, in_counts.data(), in_places.data(), type, out, out_counts.data(), out_places.data(), type,
                          comm, request);
    case HVD_SEND:
      return m.Isend(in, in_count, type, peer, kTag, comm, request);
    case HVD_RECV:
      return m.Irecv(out, in_count, type, peer, kTag, comm, request);
    default:
      return m.Ibarrier(comm, request);
  }
}

int MpiCall::make(Handle comm) const {
  const MpiApi& m = mpi();
  switch (kind) {
    case HVD_ALLREDUCE:
      return m.Allreduce(in, out, in_count, type, op, comm);
    case HVD_REDUCE:
      return m.Reduce(in, out, in_count, type, op, root, comm);
    case HVD_BROADCAST:
      return m.Bcast(out, in_count, type, root, comm);
    case HVD_ALLGATHER:
      if (out_counts.empty()) return m.Allgather(in, in_count, type, out, in_count, type, comm);
      return m.Allgatherv(in, in_count, type, out, out_counts.data(), out_places.data(), type, comm);
    case HVD_REDUCESCATTER:
      if (out_counts.empty()) return m.Reduce_scatter_block(in, out, out_count, type, op, comm);
      return m.Reduce_scatter(in, out, out_counts.data(), type, op, comm);
    case HVD_ALLTOALL:
      if (out_counts.empty()) return m.Alltoall(in, in_count, type, out, out_count, type, comm);
      return m.Alltoallv(in, in_counts.data(), in_places.data(), type, out, out_counts.data(), out_places.data(), type,
                         comm);
    default:
      return m.Barrier(comm);
  }
}
