// What a backend for host memory has to know of one collective, read from hvd_coll_args.
//
// Checks what one rank can check alone, and computes a digest of what all ranks must agree on. Local: no call here
// waits for, or looks at, another rank. Used by the thread that is inside a call on the communicator; is_served()
// and why_not_served() by any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer_list.h"
#include "hvd/backend.hpp"
#include "kernels.h"

namespace hvd::host_kernels {

constexpr uint32_t kWords = 5;

struct Collective {
  int32_t coll = 0, dtype = 0, root = 0;
  uint32_t elem = 1;  // bytes per element
  Scale scale;
  ReduceFn reduce = nullptr;
  // One list each, or one per rank: `in` of REDUCESCATTER and ALLTOALL, `out` of ALLGATHER and ALLTOALL.
  std::vector<BufferList> in, out;
  uint64_t extent = 0;  // bytes of the whole; of the longest part if the parts differ by rank
  uint64_t show = 0;    // bytes that each rank shows to the others, at most
  // What all ranks must agree on: a digest of everything, and its facts as numbers, for messages.
  uint64_t hash = 0, words[kWords] = {};
  bool packed = false;    // many tiny buffers: one copy of all costs less than a kernel call for each
  bool own_copy = false;  // this rank's own part is wanted in its output too
  bool barrier = false;   // no data
  bool exchange = false;  // ALLTOALL: the sizes differ by pair and are not in the digest
};

// Is a collective of this kind, dtype and reduction served? The same for all communicators of the host backends.
bool is_served(const hvd_coll_args& args);
// Why is_served() says no.
Error why_not_served(const hvd_coll_args& args);
// Reads a collective that is served. *collective's memory is used again from call to call. Throws HVD_E_INVALID if the
// arguments contradict each other.
void read_collective(const hvd_coll_args& args, uint32_t rank, uint32_t size, Collective* collective);
// Carries out a collective of a communicator of one rank.
void run_alone(Collective& collective);
// "allreduce sum, factors 1 and 1, of 10 float32 in 1 buffers", from the words of a collective.
void describe(const uint64_t words[kWords], char* text, uint64_t n);

}  // namespace hvd::host_kernels
