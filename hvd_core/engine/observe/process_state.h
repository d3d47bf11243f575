// What the kernel says of another process of this host: whether it is stopped. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace hvd::observe {

// "its process is stopped ...", for a report about a process that does not answer. Empty if `pid` is 0 or there is no
// such process in sight.
std::string process_state(int32_t pid);
// Whether the process is stopped, waits in the kernel or has ended. False also if its state cannot be seen.
bool is_seen_to_stand(int32_t pid);

}  // namespace hvd::observe
