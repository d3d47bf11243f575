// Reads the text that Python's faulthandler writes about the threads of a process. Plain functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/observe/program.h"
#include "engine/observe/snapshot.h"

namespace hvd::observe {

// The threads of `text`, the main thread first, the one that wrote it left out. At most `most_threads` threads of
// `most_frames` frames each.
std::vector<Thread> parse_stacks(std::string_view text, const Program& program, size_t most_threads = 8,
                                 size_t most_frames = 12);

// Fills in the source line of a place. Reads the file, which may take long (sources.h). Leaves it out if it cannot be
// found.
void add_source(Place& place);

// The path relative to the working directory, where it is below.
std::string shortened(const std::string& path);

}  // namespace hvd::observe
