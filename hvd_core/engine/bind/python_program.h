// Python as the engine's reports see it: the line of the program that made a call, and what its threads run.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/observe/program.h"
#include "engine/types/call_site.h"

namespace hvd::bind {

// The innermost line of the user's program that led to this call, or else a line of a library; and the line of the
// program that called that function. To be called with the GIL, in the thread of the call. The code of the functions
// stays alive from then on, so that the engine can name the lines at any time.
types::CallSite call_site() noexcept;

// `packages`: the folder that holds hvd_core and the packages above it. With Python's lock.
std::shared_ptr<const observe::Program> python_program(const std::string& packages);

// Program::stacks_without_lock() by itself, for tests. With the GIL, which it gives up meanwhile.
std::optional<std::string> stacks_from_copy();

}  // namespace hvd::bind
