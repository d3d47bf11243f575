// See root_watch.h.
#include "engine/watch/root_watch.h"

#include <algorithm>

#include "engine/base/log.h"
#include "engine/watch/snapshot.h"

namespace hvd::watch {

using agreement::kNever;
using base::Level;

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// Rank 0 answers as soon as it drives; it may be inside of a backend's call.
constexpr int64_t kRootAnswerNs = 3 * kSecondNs, kPauseNs = kSecondNs / 4;

std::string seconds_of(int64_t ns) { return watch::seconds(static_cast<double>(ns) / 1e9); }

}  // namespace

void RootWatch::entry_received(int64_t now) {
  entries_ = node_.entries();
  entry_at_ = now;
  if (next_report_ns_ > 0) base::log(Level::Warning, host_.root() + " answers again, after " + seconds_of(silent_ns_));
  if (asked_) next_ = now + settings_.warn_ns;
  asked_ = false;
  next_report_ns_ = 0;
}

bool RootWatch::examine(int64_t now) {
  const int64_t since = host_.waits_since();
  if (since == kNever && !asked_) {
    next_ = kNever;
    return false;
  }
  if (!asked_) {
    next_ = std::max(since, entry_at_) + settings_.warn_ns;
    if (now < next_) return false;
    asked_ = true;
    examined_at_ = now;
    silent_ns_ = 0;
    next_ = now + kPauseNs;
    node_.tell(kSignOfLife, "");
    return true;
  }
  // Time in which this process was stopped itself counts for little.
  silent_ns_ += std::min(now - examined_at_, kSecondNs);
  examined_at_ = now;
  next_ = now + kPauseNs;
  if (silent_ns_ < kRootAnswerNs) return false;
  const std::string text =
      host_.silent() + ", has not answered for " + seconds_of(silent_ns_) + ": " + host_.circumstance();
  if (silent_ns_ >= next_report_ns_) {
    base::log(Level::Warning, text);
    next_report_ns_ = 2 * silent_ns_;
  }
  // The silence itself must have lasted for the limit: a rank may wait in join() for hours, and rank 0 be slow for
  // seconds.
  if (settings_.abort_ns > 0 && since != kNever && silent_ns_ >= settings_.abort_ns &&
      now - since >= settings_.abort_ns)
    end_ = text + " (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)";
  return false;
}

}  // namespace hvd::watch
