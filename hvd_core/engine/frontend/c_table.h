// From an hvd_fe_call to a request and back to its done(): submit() and run() of the table, for an engine that runs.
// Any thread, without Python's lock.
#pragma once

#include <hvd/frontend_abi.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/base/operations.h"
#include "engine/frontend/frontend.h"

namespace hvd::frontend {

// Both call done() exactly once, also after a failure.
void submit_native(std::shared_ptr<Frontend> frontend, const hvd_fe_call& call);
void run_native(Frontend& frontend, const hvd_fe_call& call);
void refuse_native(const hvd_fe_call& call, hvd_fe_status status, const char* text);

// Throws InvalidRequest if the number is not an hvd_fe_op, or is HVD_FE_JOIN.
base::OpKind kind_of(int32_t op);
// The name that the ranks agree on; no name for NULL and "".
std::optional<std::string> name_of(base::OpKind kind, const char* name);

}  // namespace hvd::frontend
