// An operation as a caller asks for it, in plain values, and the way from there to a submitted request: checks, the
// signature, where a device has the data. Python's binding and the table for native front ends (frontend.h) meet here.
// Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/types/operations.h"
#include "engine/types/reductions.h"

namespace hvd::calls {

struct Call {
  types::OpKind kind = types::OpKind::Allreduce;  // never Adasum: that is an allreduce with reduce_op kAdasum
  std::optional<std::string> name = {};           // none: the process set counts
  int32_t process_set = 0;                        // the user's number of a set
  int32_t reduce_op = 0;                          // HVD_* or types::kAdasum
  int32_t root = -1;                              // broadcast: rank in the job
  double prescale = 1.0, postscale = 1.0;
  // out: empty for allgather, alltoall and barrier; may be empty for reducescatter.
  std::vector<queue::Tensor> in = {}, out = {};
  std::vector<std::vector<int64_t>> splits = {};  // alltoall: rows for each rank, one list per tensor; or none
  bool urgent = false, waits = false;             // as in Submission
};

// What is refused is reported to the other ranks, so that they fail instead of waiting. Throws InvalidRequest,
// EngineStopped, plugin::BackendError; the listener hears nothing then.
queue::RequestRef submit(Engine& engine, Call&& call, queue::Listener* listener = nullptr);

// How many of `rows` rows this rank gets from a reducescatter. Throws InvalidRequest.
int64_t scattered_rows(Engine& engine, int64_t rows, int32_t process_set);

// Copies output `index` of a settled request to a tensor of its layout and device. On a device the copy is in order
// behind the operation in the tensor's own stream; where that cannot be, the result marks its end, which the caller has
// to wait for. Throws InvalidRequest, plugin::BackendError.
plugin::MarkRef copy_output(Engine& engine, queue::Request& request, size_t index, const queue::Tensor& to);

}  // namespace hvd::calls
