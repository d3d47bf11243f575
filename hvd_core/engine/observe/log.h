// The engine's log lines: "[time] [rank] LEVEL text" on stderr, at HOROVOD_LOG_LEVEL and above. Any thread.
//
// The sink is global in the process because stderr is. The engine's behaviour does not depend on it.
#pragma once

#include <cstdint>
#include <string>

namespace hvd::observe {

enum class Level : int32_t { Trace = 0, Debug = 1, Info = 2, Warning = 3, Error = 4, Fatal = 5 };

void set_log(Level threshold, bool with_time, int32_t rank);
// The process was started without stderr: its descriptor may be any file of the program. No line is written any more.
void log_nothing();
bool log_enabled(Level level);
void log(Level level, const std::string& text);

// CLOCK_MONOTONIC in nanoseconds, the clock of all deadlines.
int64_t now_ns();

}  // namespace hvd::observe
