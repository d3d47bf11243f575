// From an hvd_fe_call to a request and back to its done(): what the table's submit() and run() do with a call once an
// engine is there. Any thread, none with Python's lock.
#pragma once

#include <hvd/frontend_abi.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/calls/frontend.h"
#include "engine/types/operations.h"

namespace hvd::calls {

// Both give the call its done(), whatever happens.
void submit_native(std::shared_ptr<Frontend> frontend, const hvd_fe_call& call);
void run_native(Frontend& frontend, const hvd_fe_call& call);
void refuse_native(const hvd_fe_call& call, hvd_fe_status status, const std::string& text);

// Throws InvalidRequest for a number that is none of hvd_fe_op's.
types::OpKind kind_of(int32_t op);
// The name that is agreed on; none for NULL and "".
std::optional<std::string> name_of(types::OpKind kind, const char* name);

}  // namespace hvd::calls
