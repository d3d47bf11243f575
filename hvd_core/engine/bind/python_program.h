// Python as the engine's reports see it: the line of the program that made a call, and what its threads run.
#pragma once

#include <memory>
#include <string>

#include "engine/observe/program.h"
#include "engine/types/call_site.h"

namespace hvd::bind {

// The innermost line of the user's program that led to this call, or else a line of a library. To be called with
// Python's lock, in the thread of the call. The function's code stays alive from then on, so that the engine can name
// the line at any time.
types::CallSite call_site() noexcept;

// `packages`: the folder that holds hvd_core and the packages above it. With Python's lock.
std::shared_ptr<const observe::Program> python_program(const std::string& packages);

}  // namespace hvd::bind
