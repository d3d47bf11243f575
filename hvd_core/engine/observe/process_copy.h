// Runs a function in a copy of this process (fork), for memory that other threads change meanwhile: if the function
// crashes or never ends, only the copy does.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace hvd::observe {

// What `write` writes to the descriptor that it gets. nullopt if it crashes, does not return within `patience`, or if
// there can be no copy: a process with pinned memory (as far as VmPin tells), or with very much memory, is not copied.
// `write` may call async-signal-safe functions only: another thread may have held any lock when the copy was made.
//
// The program does not notice the copy: no fork handler and no signal handler runs in it, it leaves no core file, and
// its end is no SIGCHLD and no result of wait(). Any thread.
std::optional<std::string> written_by_copy(const std::function<void(int fd)>& write,
                                           std::chrono::milliseconds patience);

// The same without a copy: in this process, which waits until `write` returns.
std::string written(const std::function<void(int fd)>& write);

}  // namespace hvd::observe
