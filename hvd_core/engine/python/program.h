// Python as the engine's reports see it: the line of the program that made a call, and what its threads run.
#pragma once

#include <memory>
#include <string>

#include "engine/base/call_site.h"
#include "engine/watch/snapshot.h"

namespace hvd::python {

// The innermost line of the user's program that led to this call, or else a line of a library; and the line of the
// program that called that function. On the thread of the call, with the GIL.
base::CallSite call_site();

// `packages`: the folder that holds hvd_core and the packages above it. With the GIL.
std::shared_ptr<const watch::Program> python_program(const std::string& packages);

}  // namespace hvd::python
