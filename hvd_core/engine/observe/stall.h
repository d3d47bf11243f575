// The warning about names that only some ranks have submitted. Called by the root's driver.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/control/coordinator.h"

namespace hvd::observe {

// Logs one line (Horovod's wording). Returns whether a name has waited longer than abort_ns (0: never).
bool report_stall(const std::vector<control::Stalled>& stalled, int64_t now, int64_t warn_ns, int64_t abort_ns);

}  // namespace hvd::observe
