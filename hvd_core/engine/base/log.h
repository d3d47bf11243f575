// The engine's log lines: "[time] [rank] LEVEL text" on stderr, at HOROVOD_LOG_LEVEL and above. Any thread.
//
// The sink is global in the process because stderr is. The engine's behaviour does not depend on it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "engine/base/clock.h"

namespace hvd::base {

enum class Level : int32_t { Trace = 0, Debug = 1, Info = 2, Warning = 3, Error = 4, Fatal = 5 };

void set_log(Level threshold, bool with_time, int32_t rank);
// The process was started without stderr: its descriptor may be any file of the program. No line is written any more.
void log_nothing();
bool log_enabled(Level level);
// `text` may come from another rank or from a backend: it passes through printable().
void log(Level level, const std::string& text);

struct LogLine {
  Level level;
  std::string text;
};
// While it is on, lines below Fatal are kept for take_line() and not written. A line that finds no room, or that
// another thread keeps from its place, is written as usual: log() never waits. Off: take_line() returns at once.
void keep_lines(bool on);
// The oldest line that is kept; waits for one while keep_lines is on. Nothing if it is off and no line is left.
std::optional<LogLine> take_line();
// For a forked child, where another thread of the parent may have held a lock: off, without waiting for it. The child
// may turn it on again.
void keep_lines_no_more();

using hvd::now_ns;

}  // namespace hvd::base
