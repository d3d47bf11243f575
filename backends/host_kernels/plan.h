// From hvd_coll_args to streams of bytes: what a backend for host memory has to know of one collective.
//
// Checks what one rank can check alone, and digests what all ranks must agree on. Local: no call here waits or looks
// at another rank. Used by the thread that is inside a call on the communicator; served() by any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "hvd/backend_abi.h"
#include "kernels.h"
#include "streams.h"

namespace hvd::host_kernels {

constexpr uint32_t kWords = 5;

struct Plan {
  int32_t coll = 0, dtype = 0, root = 0;
  uint32_t elem = 1;  // bytes per element
  Scale scale;
  ReduceFn reduce = nullptr;
  // One stream each, or one per rank: `in` of REDUCESCATTER and ALLTOALL, `out` of ALLGATHER and ALLTOALL.
  std::vector<Stream> in, out;
  uint64_t extent = 0;  // bytes of the whole, of the longest part where parts differ by rank
  uint64_t show = 0;    // bytes that each rank has to show, at most
  // What all ranks must agree on: the digest of everything, and what it is in words.
  uint64_t hash = 0, words[kWords] = {};
  bool packed = false;    // many tiny buffers: one copy of all costs less than a kernel call for each
  bool own_copy = false;  // this rank's own part is wanted in its output too
  bool barrier = false;   // nothing to show
  bool exchange = false;  // ALLTOALL: the sizes differ by pair and are not in the digest
};

// Turns args into *plan, whose memory is reused from call to call.
hvd_rc read_plan(const hvd_coll_args& args, uint32_t rank, uint32_t size, Plan* plan, hvd_error* err);
// HVD_OK when the collective, dtype and reduction are served at all.
hvd_rc served(const hvd_coll_args& args, hvd_error* err);
// A planned operation of a communicator of one.
void run_alone(Plan& plan);
// "allreduce (sum) of 10 float32 in 1 buffer", from the words of a plan.
void describe(const uint64_t words[kWords], char* text, uint64_t n);

}  // namespace hvd::host_kernels
