// A rank's watch over rank 0, which finds all other stalls (stall_check.h) and cannot report its own silence.
//
// When something has waited here for the stall time, and no entry of the log has come for as long, this rank asks rank
// 0 for a sign of life (R14): any entry. Without an answer it reports, again and again at growing distances, and at the
// limit it ends the job. A state machine of the driver on all ranks but rank 0: called by the driver.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/agreement/node.h"

namespace hvd::watch {

class RootWatch {
 public:
  // The id of the TOLD that asks for a sign of life, and of the LOOK that is one.
  static constexpr uint32_t kSignOfLife = UINT32_MAX;

  struct Settings {
    int64_t warn_ns = 60'000'000'000, abort_ns = 0;  // 0: never
  };
  struct Host {
    std::function<int64_t()> waits_since;       // of the oldest request that waits here; kNever: no request waits
    std::function<std::string()> root;          // "rank 0 (host a, pid 17)"
    std::function<std::string()> silent;        // the rank whose silence it seems to be, with its task
    std::function<std::string()> circumstance;  // why it may be silent, and what this rank waits for
  };

  RootWatch(Settings settings, agreement::Node& node, Host host)
      : settings_(settings), node_(node), host_(std::move(host)) {}

  // To be called in each round of the driver. `waits`: whether any request waits here. Returns whether a message was
  // sent.
  bool check(int64_t now, bool waits) {
    if (over_) return false;
    if (node_.entries() != entries_) entry_received(now);
    if (next_ == agreement::kNever && waits) next_ = now + settings_.warn_ns;
    return now >= next_ && examine(now);
  }
  // The cause with which the job has to end; empty: it goes on.
  const std::string& end() const { return end_; }
  // When check() has to be called at the latest.
  int64_t next() const { return next_; }
  // The job ends: rank 0 answers no more.
  void stop() {
    over_ = true;
    next_ = agreement::kNever;
  }

 private:
  void entry_received(int64_t now);
  bool examine(int64_t now);

  const Settings settings_;
  agreement::Node& node_;
  const Host host_;
  int64_t next_ = agreement::kNever;
  uint64_t entries_ = 0;
  int64_t entry_at_ = 0;
  bool asked_ = false, over_ = false;
  int64_t examined_at_ = 0, silent_ns_ = 0, next_report_ns_ = 0;
  std::string end_;
};

}  // namespace hvd::watch
