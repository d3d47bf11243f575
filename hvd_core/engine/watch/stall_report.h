// The report about operations that only some ranks have submitted: which ranks are missing, and what they do instead.
// It says what is known and guesses no cause. A pure function from the facts to texts; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/watch/snapshot.h"

namespace hvd::watch {

// An operation that only some ranks of its process set have submitted.
struct Stall {
  std::string operation;    // "allreduce"
  std::string name;         // as the ranks see it: "allreduce.loss", "add_process_set"
  int32_t process_set = 0;  // the number that users see
  double age_s = 0;
  std::vector<int32_t> waiting, missing;
  bool too_long = false;  // longer than the limit at which the job ends
};

struct StallFacts {
  double warn_s = 60, abort_s = 0;  // of the settings; abort_s 0: never
  std::vector<Stall> stalls;
  std::map<int32_t, Snapshot> snapshots;                 // by rank; those that answered
  std::vector<int32_t> asked;                            // ranks that were asked for their snapshots
  std::map<int32_t, std::string> processes;              // of ranks that did not answer: see base/process.h
  std::map<int32_t, std::vector<int32_t>> process_sets;  // ranks by number
  double since_report_s = 0;                             // age of the oldest stall at the last report; 0: none before

  const Snapshot* snapshot_of(int32_t rank) const {
    const auto found = snapshots.find(rank);
    return found == snapshots.end() ? nullptr : &found->second;
  }
};

// What `rank`, which misses in `stall`, does instead: "stands still at data.py:7 in load: time.sleep(100)".
std::string doing_of(const StallFacts& facts, const Stall& stall, int32_t rank);

struct StallReport {
  std::string text;                      // several lines, for rank 0
  std::map<int32_t, std::string> lines;  // for the log of each other rank that was asked: its own part
  std::string summary;                   // for the exception that ends the job: one paragraph
  std::string json;                      // one line; empty unless it is wanted
};
StallReport report_of(const StallFacts& facts, bool with_json = false);

}  // namespace hvd::watch
