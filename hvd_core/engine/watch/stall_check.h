// The root's watch over operations that only some ranks have submitted (R14): it finds them, asks the ranks what they
// do, and logs the report, again and again at growing distances while nothing proceeds. Each of the other ranks logs
// its own part.
//
// A state machine of the driver on rank 0: called by the driver.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/agreement/node.h"
#include "engine/calls/process_sets.h"
#include "engine/watch/stall_report.h"

namespace hvd::watch {

class StallCheck {
 public:
  struct Settings {
    int64_t warn_ns = 60'000'000'000, abort_ns = 0;  // 0: never
    std::string json_path;                           // each report is a line of JSON in this file; empty: none
    std::function<std::string(agreement::Rank)> process_state;  // see base/process.h; empty: unknown
  };

  StallCheck(Settings settings, agreement::Node& node, const calls::ProcessSets& sets);

  // Returns whether there are new entries of the log.
  bool check(int64_t now);
  // The cause with which the job has to end, because it has waited for too long; empty: it goes on.
  const std::string& end() const { return end_; }
  // The ranks that were missing for too long then.
  const std::vector<agreement::Rank>& missing() const { return missing_; }
  void received(agreement::Rank rank, uint32_t id, const std::string& text);
  // When check() has to be called at the latest.
  int64_t next() const { return next_; }
  // Whether check() has more to look for than the time.
  bool wants_time() const { return next_ == agreement::kNever || requested_ || !reported_.empty(); }
  void stop();
  // How many reports there were.
  uint64_t reports() const { return reports_; }

 private:
  void request_snapshots(int64_t now);
  bool report(int64_t now);
  StallFacts facts(int64_t now, const std::vector<agreement::Stalled>& stalled) const;
  // When the last report is repeated if nothing proceeds: each time when the stall is twice as old.
  int64_t repeated_at() const { return stalled_since_ + 2 * (reported_at_ - stalled_since_); }
  bool is_too_old(int64_t now, const agreement::Stalled& s) const {
    return settings_.abort_ns > 0 && now - s.since >= settings_.abort_ns;
  }
  bool is_due(int64_t now, const std::vector<agreement::Stalled>& stalled) const;
  void schedule(int64_t now, const std::vector<agreement::Stalled>& stalled);
  bool report_progress(int64_t now);
  void write_json(const std::string& line) const;

  const Settings settings_;
  agreement::Node& node_;
  const calls::ProcessSets& sets_;
  int64_t next_ = agreement::kNever;
  std::string end_;
  std::vector<agreement::Rank> missing_;

  // A request for snapshots that is under way.
  bool requested_ = false;
  uint32_t request_id_ = 0;
  int64_t requested_at_ = 0, answers_due_ = 0;
  std::vector<agreement::Rank> asked_;
  std::map<agreement::Rank, Snapshot> answers_;

  // The last report, while what it reported still waits.
  std::vector<agreement::Stalled> reported_;
  std::vector<agreement::Rank> notified_ranks_;  // ranks that have logged it
  int64_t stalled_since_ = 0, reported_at_ = 0;
  uint64_t entries_seen_ = 0, reports_ = 0;
};

}  // namespace hvd::watch
