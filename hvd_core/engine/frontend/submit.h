// From a call to a submitted request: checks, the signature, and on a device the point at which the data are ready.
// Python's binding and the table for native front ends (frontend.h) both submit here. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/operations.h"
#include "engine/calls/call.h"
#include "engine/core/engine.h"
#include "engine/frontend/frontend.h"

namespace hvd::frontend {

using calls::Call;

// Submits a call. A call that is refused is reported to the other ranks, so that their matching calls fail and do not
// wait. Throws InvalidRequest, RequestFailed, plugins::BackendError; then the call's listener is not called.
calls::RequestRef submit(Frontend& frontend, Call&& call);

// Reports a call that failed before submit(): the matching calls of the other ranks shall fail too.
void refuse(Engine& engine, const Call& call, const std::string& why);

// The number of rows that this rank gets from a reducescatter of `rows` rows. Throws InvalidRequest.
int64_t scattered_rows(Engine& engine, int64_t rows, int32_t process_set);

// Copies output `index` of a settled request to a tensor of its layout and device. On a device the copy is enqueued in
// the tensor's own stream, after the operation, and the result is null. If the device cannot do that, the caller has to
// wait for the returned mark. Throws InvalidRequest, plugins::BackendError.
plugins::MarkRef copy_output(Engine& engine, calls::Request& request, size_t index, const calls::Tensor& to);

}  // namespace hvd::frontend
