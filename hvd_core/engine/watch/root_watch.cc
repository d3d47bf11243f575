// See root_watch.h.
#include "engine/watch/root_watch.h"

#include <algorithm>

#include "engine/base/log.h"
#include "engine/watch/snapshot.h"

namespace hvd::watch {

using agreement::kNever;

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// Rank 0 answers as soon as it drives; it may be inside of a backend's call.
constexpr int64_t kRootAnswerNs = 3 * kSecondNs, kPauseNs = kSecondNs / 4;

}  // namespace

void RootWatch::entry_received(int64_t now) {
  entries_ = node_.entries();
  entry_at_ = now;
  if (next_report_ns_ > 0)
    base::log(base::Level::Warning, host_.root() + " answers again, after " + seconds_of(silent_ns_));
  if (asked_) next_ = now + warn_ns_;
  asked_ = false;
  next_report_ns_ = 0;
}

bool RootWatch::examine(int64_t now) {
  const int64_t since = host_.waits_since();
  if (asked_) {
    examine_silence(now, since);
    return false;
  }
  next_ = since == kNever ? kNever : std::max(since, entry_at_) + warn_ns_;
  if (now < next_) return false;
  asked_ = true;
  examined_at_ = now;
  silent_ns_ = 0;
  next_ = now + kPauseNs;
  node_.send_snapshot(kSignOfLife, "");
  return true;
}

void RootWatch::examine_silence(int64_t now, int64_t since) {
  // Time in which this process was stopped itself counts for little.
  silent_ns_ += std::min(now - examined_at_, kSecondNs);
  examined_at_ = now;
  next_ = now + kPauseNs;
  // The silence itself must have lasted for the limit: a rank may wait in join() for hours, and rank 0 be slow for
  // seconds.
  const bool too_long = abort_ns_ > 0 && since != kNever && silent_ns_ >= abort_ns_ && now - since >= abort_ns_;
  const bool reports = silent_ns_ >= next_report_ns_;
  if (silent_ns_ < kRootAnswerNs || (!reports && !too_long)) return;
  const std::string text = host_.silence(silent_ns_);
  if (reports) {
    base::log(base::Level::Warning, text);
    next_report_ns_ = 2 * silent_ns_;
  }
  if (too_long) end_ = text + " (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)";
}

}  // namespace hvd::watch
