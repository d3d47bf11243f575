// One round: a job is made, works, and ends in one of many ways. Everything about it follows from its seed, but for the
// moments at which threads run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "world.h"

namespace hvd::native {

enum class Ending {
  Finish,    // all work is done, then one rank shuts down, the others follow or are just dropped
  Join,      // ranks with different amounts of data join, work on, and finish
  Shutdown,  // some rank shuts down while the others work
  Abort,     // one or two ranks abort
  Close,     // an engine is closed under its callers
  Cut,       // a rank's sockets come to their end
  Fork,      // the process forks in the middle; the child must find an engine that refuses, the parent works on
  Absent,    // a rank never comes: the others give up
  Flood,     // engines are closed while threads submit as fast as they can and wait for nothing
};
const char* ending_name(Ending ending);
const std::vector<Ending>& all_endings();

struct RoundOptions {
  uint64_t seed = 1;
  std::vector<int> ranks;       // to draw from
  std::vector<Ending> endings;  // to draw from
  std::vector<Ways> ways;       // to draw from
};

struct Tally {
  uint64_t rounds = 0, done = 0, failed = 0, refused = 0, sets = 0;
  std::map<std::string, uint64_t> of;  // rounds by ending
};

void run_round(const RoundOptions& options, Tally& tally);

}  // namespace hvd::native
