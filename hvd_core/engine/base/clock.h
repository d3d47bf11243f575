// The clocks, in nanoseconds. Any thread.
#pragma once

#include <hvd/backend_clock.hpp>

namespace hvd {

// Since 1970.
inline int64_t wall_clock_ns() { return clock_ns(CLOCK_REALTIME); }

}  // namespace hvd
