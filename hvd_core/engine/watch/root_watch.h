// A rank's watch over rank 0, which finds all other stalls (stall_check.h) and cannot report its own silence.
//
// When something has waited here for the stall time, and no entry of the log has come for as long, this rank asks rank
// 0 for a sign of life (R14): any entry. Without an answer it reports, again and again at growing distances, and at the
// limit it ends the job. A state machine of the driver on all ranks but rank 0: called by the driver.
#pragma once

#include <cstdint>
#include <string>

#include "engine/agreement/node.h"

namespace hvd::watch {

class RootWatch {
 public:
  // The id of the SNAPSHOT that asks for a sign of life, and of the SNAPSHOT? that is one.
  static constexpr uint32_t kSignOfLife = UINT32_MAX;

  class Host {
   public:
    // When the oldest request that waits here was submitted; kNever: no request waits.
    virtual int64_t waits_since() const = 0;
    // "rank 0 (host a, pid 17)"
    virtual std::string root() const = 0;
    // The report: which rank seems to be silent, why, and what this rank waits for.
    virtual std::string silence(int64_t silent_ns) const = 0;

   protected:
    ~Host() = default;
  };

  // warn_ns: the stall time. abort_ns: when the job ends; 0: never.
  RootWatch(int64_t warn_ns, int64_t abort_ns, agreement::Node& node, const Host& host)
      : warn_ns_(warn_ns), abort_ns_(abort_ns), node_(node), host_(host) {}

  // To be called in each round of the driver. `waits`: whether any request waits here. Returns whether a message was
  // sent.
  bool check(int64_t now, bool waits) {
    if (stopped_) return false;
    if (node_.entries() != entries_) entry_received(now);
    if (next_ == agreement::kNever && waits) next_ = now + warn_ns_;
    return now >= next_ && examine(now);
  }
  // The cause with which the job has to end; empty: it goes on.
  const std::string& end() const { return end_; }
  // When check() has to be called at the latest.
  int64_t next() const { return next_; }
  // The job ends: rank 0 answers no more.
  void stop() {
    stopped_ = true;
    next_ = agreement::kNever;
  }

 private:
  void entry_received(int64_t now);
  bool examine(int64_t now);
  void examine_silence(int64_t now, int64_t since);

  const int64_t warn_ns_, abort_ns_;
  agreement::Node& node_;
  const Host& host_;
  bool stopped_ = false;
  int64_t next_ = agreement::kNever;
  uint64_t entries_ = 0;
  int64_t entry_at_ = 0;  // when the last of these entries came
  // Since rank 0 was asked for a sign of life:
  bool asked_ = false;
  int64_t examined_at_ = 0, silent_ns_ = 0, next_report_ns_ = 0;
  std::string end_;
};

}  // namespace hvd::watch
