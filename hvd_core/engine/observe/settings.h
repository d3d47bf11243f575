// The settings of the observer, and of one timeline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hvd::observe {

struct TimelineSettings {
  std::string path;  // of rank 0, or with "{rank}" in it
  bool mark_cycles = false;
  bool all_ranks = false;  // a path with "{rank}" means that too
  uint64_t max_bytes = 0;  // 0: no limit
};

// The path of this rank's file; empty if this rank writes none.
std::string timeline_path(const TimelineSettings& settings, int32_t rank);

struct ObserverSettings {
  bool recorder = true;
  bool watched = false;         // a process of its own reads the rings (hvd_core/_observe/watcher.py)
  std::string flight_folder;    // where the rings of dead ranks and of an aborted job are saved; empty: nowhere
  std::string job;              // a name of the job that no other job has
  int64_t clock_offset_ns = 0;  // what has to be added to this host's clock for the clock of rank 0's host
  uint64_t timeline_max_bytes = 0;
  std::optional<TimelineSettings> timeline;  // from the start on
};

}  // namespace hvd::observe
