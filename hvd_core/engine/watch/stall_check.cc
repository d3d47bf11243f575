// See stall_check.h.
#include "engine/watch/stall_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/watch/snapshot.h"

namespace hvd::watch {

using agreement::kNever;
using agreement::Rank;
using agreement::Stalled;
using base::Level;

namespace {

// A rank samples its stacks for 1.5 s at most. One that has not answered by now does not.
constexpr int64_t kAnswerNs = 3'000'000'000;
constexpr size_t kMostAsked = 64, kMostStalls = 64;

int64_t begin_of(const std::vector<Stalled>& stalled) {
  int64_t since = kNever;
  for (const Stalled& s : stalled) since = std::min(since, s.since);
  return since;
}

double to_seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// The missing ranks first, for there is room for some only.
std::vector<Rank> ranks_to_ask(const std::vector<Stalled>& stalled) {
  std::set<Rank> ranks;
  const auto add = [&](const std::vector<Rank>& more, size_t most) {
    for (size_t i = 0; i < more.size() && ranks.size() < most; ++i) ranks.insert(more[i]);
  };
  for (const Stalled& s : stalled) add(s.missing, kMostAsked * 3 / 4);
  for (const Stalled& s : stalled) add(s.waiting, kMostAsked);
  for (const Stalled& s : stalled) add(s.missing, kMostAsked);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

StallCheck::StallCheck(Settings settings, agreement::Node& node, const calls::ProcessSets& sets)
    : settings_(std::move(settings)), node_(node), sets_(sets) {}

void StallCheck::stop() {
  next_ = kNever;
  requested_ = false;
  reported_.clear();
}

bool StallCheck::check(int64_t now) {
  const bool proceeds = !reported_.empty() && node_.entries() != entries_seen_ && report_progress(now);
  if (requested_) {
    const bool complete = answers_.size() == asked_.size() || now >= answers_due_;
    return (complete && report(now)) || proceeds;
  }
  if (next_ == kNever && node_.coordinator()->waiting()) next_ = now + settings_.warn_ns;
  if (now < next_) return proceeds;
  int64_t oldest;
  const auto stalled = node_.coordinator()->stalled(now - settings_.warn_ns, &oldest);
  if (stalled.empty()) {
    next_ = oldest == kNever ? kNever : oldest + settings_.warn_ns;
    return proceeds;
  }
  if (!is_due(now, stalled)) {
    schedule(now, stalled);
    return proceeds;
  }
  request_snapshots(now);
  return true;
}

// A stall is reported after warn_ns, repeated while it lasts, and reported at once when another rank is missing.
bool StallCheck::is_due(int64_t now, const std::vector<Stalled>& stalled) const {
  if (reported_.empty() || now >= repeated_at()) return true;
  std::set<Rank> known;
  for (const Stalled& s : reported_) known.insert(s.missing.begin(), s.missing.end());
  return std::ranges::any_of(stalled, [&](const Stalled& s) {
    return is_too_old(now, s) || !std::ranges::all_of(s.missing, [&](Rank r) { return known.contains(r); });
  });
}

void StallCheck::schedule(int64_t now, const std::vector<Stalled>& stalled) {
  next_ = std::min(now + settings_.warn_ns, std::max(now + 1'000'000, repeated_at()));
  if (settings_.abort_ns > 0) next_ = std::min(next_, std::max(now, begin_of(stalled) + settings_.abort_ns));
}

void StallCheck::request_snapshots(int64_t now) {
  int64_t oldest;
  // Known batches that some ranks have arrived at are dissolved here, so that all names are known in the report.
  asked_ = ranks_to_ask(node_.coordinator()->stalled(now, &oldest));
  answers_.clear();
  requested_ = true;
  requested_at_ = now;
  next_ = answers_due_ = now + kAnswerNs;
  node_.request_snapshots(++request_id_, asked_);
}

void StallCheck::received(Rank rank, uint32_t id, const std::string& text) {
  if (!requested_ || id != request_id_ || !std::binary_search(asked_.begin(), asked_.end(), rank)) return;
  Snapshot s;
  try {
    s = decode(text);
  } catch (const agreement::WireError& e) {  // a report must not end the job
    return base::log(base::Level::Warning, "rank " + std::to_string(rank) + " sent an unreadable report: " + e.what());
  }
  s.rank = rank;
  answers_[rank] = std::move(s);
}

StallFacts StallCheck::facts(int64_t now, const std::vector<Stalled>& stalled) const {
  StallFacts f;
  f.warn_s = to_seconds(settings_.warn_ns);
  f.abort_s = to_seconds(settings_.abort_ns);
  for (const Stalled& s : stalled) {
    if (f.stalls.size() == kMostStalls) break;
    Stall stall;
    stall.operation = s.kind ? base::op_name(*s.kind) : "";
    stall.name = s.kind ? agreement::shown_name(*s.kind, s.name) : s.name;
    if (s.kind && base::changes_sets(*s.kind) && stall.name != stall.operation)  // the first message of two ranks
      stall.operation = base::op_name(base::OpKind::Send);
    stall.process_set = sets_.number_of(s.set);
    stall.age_s = to_seconds(now - s.since);
    stall.waiting = s.waiting;
    stall.missing = s.missing;
    stall.too_long = is_too_old(now, s);
    f.stalls.push_back(std::move(stall));
  }
  f.snapshots = answers_;
  f.asked = asked_;
  for (Rank r : asked_)
    if (settings_.process_state && !answers_.contains(r)) f.processes[r] = settings_.process_state(r);
  f.process_sets = sets_.all();
  if (!reported_.empty()) f.since_report_s = to_seconds(reported_at_ - stalled_since_);
  return f;
}

bool StallCheck::report(int64_t now) {
  requested_ = false;
  int64_t oldest;
  // All that waited already when the snapshots were requested, so that the report is whole.
  const auto stalled = node_.coordinator()->stalled(requested_at_, &oldest);
  if (stalled.empty()) {
    next_ = oldest == kNever ? kNever : std::max(now, oldest + settings_.warn_ns);
    return false;
  }
  const StallReport r = report_of(facts(now, stalled), !settings_.json_path.empty());
  ++reports_;
  reported_ = stalled;
  notified_ranks_ = asked_;
  stalled_since_ = begin_of(stalled);
  reported_at_ = now;
  entries_seen_ = node_.entries();
  schedule(now, stalled);
  // Here at once, because the job may end next; on the other ranks by entries of the log.
  base::log(Level::Warning, r.text);
  for (const auto& [rank, line] : r.lines) node_.report({rank}, line.substr(0, agreement::kLongestReport));
  if (!settings_.json_path.empty()) write_json(r.json);
  for (const Stalled& s : stalled)
    if (is_too_old(now, s)) missing_.insert(missing_.end(), s.missing.begin(), s.missing.end());
  if (!missing_.empty()) {
    base::log(Level::Error, "One or more rank (marked by \"!\") is stalled for longer than " +
                                std::to_string(settings_.abort_ns / 1'000'000'000) + " seconds. Will shutdown.");
    end_ = r.summary;
  }
  return !r.lines.empty();
}

// Returns whether there are new entries of the log.
bool StallCheck::report_progress(int64_t now) {
  entries_seen_ = node_.entries();
  const auto* root = node_.coordinator();
  if (std::ranges::any_of(reported_, [&](const Stalled& s) { return root->still_waits(s); })) return false;
  std::string names;
  for (size_t i = 0; i < reported_.size() && i < 6; ++i) names += (i ? ", " : "") + reported_[i].name;
  if (reported_.size() > 6) names += ", ...";
  const std::string text =
      "The operations that were stalled proceed again after " + seconds_of(now - stalled_since_) + ": " + names;
  base::log(Level::Warning, text);
  reported_.clear();
  std::erase(notified_ranks_, 0);
  if (notified_ranks_.empty()) return false;
  node_.report(std::move(notified_ranks_), text);
  return true;
}

void StallCheck::write_json(const std::string& line) const {
  const int fd = ::open(settings_.json_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const std::string text = line + "\n";
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ::close(fd);
  if (!written)
    base::log(Level::Warning,
              "the stall report cannot be written to " + settings_.json_path + " (HOROVOD_STALL_REPORT_JSON)");
}

}  // namespace hvd::watch
