// What the engine throws at its callers. The binding makes Python exceptions of them (bind/module.cc).
#pragma once

#include <stdexcept>
#include <string>

#include "engine/types/failure.h"

namespace hvd::queue {

inline constexpr const char* kForkedText =
    "this process is a fork of one that runs the engine, which belongs to the parent: collectives cannot be used here. "
    "Call hvd.init() only in processes that the launcher started, or use the 'spawn' start method.";

inline constexpr const char* kDuplicateText =
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed.  If you want to request another tensor, use a different tensor name.";

// A mistake in the call's arguments (a duplicate name, for example), before there is a request: ValueError in Python.
struct InvalidRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A request that has failed, or a call that the engine refuses because the job has ended: a subclass of
// HorovodInternalError in Python, chosen by `failure`.
struct RequestFailed : std::runtime_error {
  RequestFailed(types::Failure kind, const std::string& text) : std::runtime_error(text), failure(kind) {}
  types::Failure failure;
};

}  // namespace hvd::queue
