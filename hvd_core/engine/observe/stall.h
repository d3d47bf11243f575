// The report about operations that only some ranks have submitted: which ranks are missing, what they do instead, and
// the likely cause. A pure function from the facts to texts; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/observe/snapshot.h"

namespace hvd::observe {

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
  std::map<int32_t, std::string> processes;              // of ranks that did not answer: see process_state.h
  std::map<int32_t, std::vector<int32_t>> process_sets;  // ranks by number
  double since_report_s = 0;                             // age of the oldest stall at the last report; 0: none before
};

// What keeps a missing rank from submitting.
enum class Cause {
  NoAnswer,    // its engine does not answer: a thread is inside a backend, or the process is stopped
  Error,       // an operation failed there before, and the program went on
  OtherName,   // it waits for another name at the same line
  FewerSteps,  // it has left the line that others still come to
  OtherCall,   // it waits for another operation, at another line
  Joined,      // it waits in join()
  Ended,       // its program has reached its end
  Lock,        // its main thread waits for a lock or for another thread
  Sleep,       //
  Waits,       // its main thread waits for something else: a queue, a data loader, a process
  Works,       // it moves, or uses the processor: it is slow
  Stands,      // it stands still, for a reason that cannot be seen
  Copies,      // it has called the operation, and copies the data from a device
  SomeRanks,   // it has come to the same line again without it: a parameter of some ranks only
};
const char* name_of(Cause cause);

struct Diagnosis {
  Cause cause = Cause::Stands;
  std::string doing;         // "sleeps at data.py:7 in load: time.sleep(100)"
  std::string sentence;      // the likely cause, as a sentence about "rank 1"; empty if nothing is known beyond `doing`
  bool conditional = false;  // the call that it lacks stands under a condition on the rank
};
// Why `rank`, which misses in stalls[of], does not submit it.
Diagnosis diagnose(const StallFacts& facts, size_t of, int32_t rank);

struct StallReport {
  std::string text;     // several lines
  std::string summary;  // for the exception that ends the job: one paragraph
  std::string json;     // one line; empty unless it is wanted
  bool too_long = false;
};
StallReport report_of(const StallFacts& facts, bool with_json = false);

}  // namespace hvd::observe
