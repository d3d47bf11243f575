// See autotune.h.
#include "engine/agreement/autotune.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

namespace hvd::agreement {

namespace {
constexpr uint32_t kSettleSteps = 5;  // a batch becomes known when it was formed so often (R4), and one step more
constexpr double kLossLimit = 2;      // steps of the best setting that a trial may cost before it ends
constexpr double kMostLoss = 3;       // and that count: a pause of the program is no loss
constexpr double kRestPerLoss = 40;   // steps of rest for each lost step: a loss of 2.5 steps in 100 steps
constexpr double kLeastGain = 0.02;   // of the time of a step
constexpr double kLongestDelayOfStep = 0.1;  // a delay that were longer could spoil a single step
// A batch on a device takes memory of the batch's size, which the engine keeps: no trial may use up a device.
constexpr uint64_t kLeastThreshold = 1u << 20, kMostThreshold = 128u << 20;
constexpr int64_t kLeastDelayNs = 50'000, kMostDelayNs = 20'000'000;
constexpr int kDirections = 4;
constexpr size_t kMaxSeen = 65536;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of a sample, in which each step has its ns and its bytes. A batch may hold more of a step than the batch before did,
// so the bytes of a single step vary; their mean does not.
struct Times {
  explicit Times(const std::vector<double>& sample) {
    for (size_t i = 0; i + 1 < sample.size(); i += 2) ns.push_back(sample[i]), bytes += sample[i + 1];
    if (!ns.empty()) bytes /= static_cast<double>(ns.size());
  }
  double per_byte() const { return bytes > 0 ? median(ns) / bytes : 0; }

  std::vector<double> ns;
  double bytes = 0;  // of a step, the mean
};

bool equal(const FusionConfig& a, const FusionConfig& b) {
  return a.threshold == b.threshold && a.coalesce_ns == b.coalesce_ns;
}
}  // namespace

const char* Autotune::header() { return "steps,fusion_threshold_mb,cycle_time_ms,score_bytes_per_us,result"; }

Autotune::Autotune(AutotuneConfig config, FusionConfig start)
    : config_(std::move(config)), default_(start), best_(start), trial_(start), tried_{start} {
  if (config_.log) config_.log(header());
  begin(Phase::Warmup, config_.warmup_samples * config_.steps_per_sample);
}

// Until a name has come three times, names are counted. Returns whether the batch has the marker.
bool Autotune::find_marker(const std::vector<Item>& items) {
  if (!marker_.empty()) {
    for (const Item& x : items)
      if (*x.name == marker_) return true;
    // It may have been a name of the program's beginning.
    if (batches_ <= 4 * batches_per_step_ + 4096) return false;
    marker_.clear();
    step_began_ = -1;
  }
  if (seen_.size() > kMaxSeen) seen_.clear();
  for (const Item& x : items) {
    if (!x.sig->fields().repeats || ++seen_[*x.name] < 3) continue;
    marker_ = *x.name;
    seen_.clear();
    return true;
  }
  return false;
}

void Autotune::executed(const std::vector<Item>& items, int64_t now) {
  if (phase_ == Phase::Done) return;
  ++batches_;
  for (const Item& x : items) step_bytes_ += x.sig->payload_bytes();
  if (!find_marker(items)) return;
  batches_per_step_ = batches_;
  batches_ = 0;
  if (step_began_ >= 0 && step_bytes_ > 0) end_step(now);
  step_began_ = now;
  step_bytes_ = 0;
}

void Autotune::end_step(int64_t now) {
  ++steps_;
  const auto ns = static_cast<double>(std::max<int64_t>(1, now - step_began_)),
             bytes = static_cast<double>(step_bytes_);
  if (is_trying() || phase_ == Phase::Return) loss_ += ns - base_mean_ * base_bytes_;
  if (phase_ == Phase::Baseline || phase_ == Phase::Trial) sample_.insert(sample_.end(), {ns, bytes});
  if (is_trying() && lost_steps(loss_) > kLossLimit) return end_trial("too slow");
  if (steps_left_ > 1) {
    --steps_left_;
    return;
  }
  switch (phase_) {
    case Phase::Warmup:
    case Phase::Rest:
      return begin(Phase::Baseline, config_.steps_per_sample);
    case Phase::Return:
      return rest();
    case Phase::Baseline:
      return end_baseline();
    case Phase::Settle:
      return begin(Phase::Trial, config_.steps_per_sample);
    case Phase::Trial:
      return end_trial(nullptr);
    case Phase::Done:
      return;
  }
}

void Autotune::begin(Phase phase, uint32_t steps) {
  phase_ = phase;
  steps_left_ = steps;
  if (phase == Phase::Baseline || phase == Phase::Trial) sample_.clear();
  if (phase == Phase::Settle) loss_ = 0;
}

// Until the loss is a small part of the steps since.
void Autotune::rest() {
  const double steps = kRestPerLoss * std::clamp(lost_steps(loss_), 0.0, kMostLoss);
  if (steps < 1) return begin(Phase::Baseline, config_.steps_per_sample);
  begin(Phase::Rest, static_cast<uint32_t>(steps));
}

void Autotune::end_baseline() {
  const Times times(sample_);
  base_ = times.per_byte();
  base_bytes_ = times.bytes;
  const double sum = std::accumulate(times.ns.begin(), times.ns.end(), 0.0);
  base_mean_ = sum / static_cast<double>(times.ns.size()) / base_bytes_;
  std::vector<double> off;
  for (double ns : times.ns) off.push_back(std::abs(ns / base_bytes_ - base_));
  base_spread_ = median(off);
  write("base", base_);
  if (next_candidate()) {
    wanted_ = trial_;
    tried_.push_back(trial_);
    return begin(Phase::Settle, kSettleSteps);
  }
  phase_ = Phase::Done;
  write("chosen", base_);
}

// `verdict`: why it ends early; null if it is complete.
void Autotune::end_trial(const char* verdict) {
  ++samples_;
  const double score = phase_ == Phase::Settle ? 0 : Times(sample_).per_byte();
  // The default needs no proof: the best has to be better than it.
  const double gain = is_last_ ? 0 : std::max(kLeastGain * base_, base_spread_);
  if (!verdict && score < base_ - gain) {
    best_ = trial_;
    base_ = score;
    failed_directions_ = 0;
    write("better", score);
    if (is_last_) {
      phase_ = Phase::Done;
      write("chosen", score);
      return;
    }
    return rest();
  }
  write(verdict ? verdict : "not better", score);
  ++failed_directions_;
  direction_ = (direction_ + 1) % kDirections;
  wanted_ = best_;
  loss_ = std::min(loss_, kMostLoss * base_mean_ * base_bytes_);
  begin(Phase::Return, kSettleSteps);
}

// Chooses the next setting to try; false if the search is over.
bool Autotune::next_candidate() {
  if (is_last_) return false;
  for (; samples_ < config_.max_samples && failed_directions_ < kDirections;
       ++failed_directions_, direction_ = (direction_ + 1) % kDirections) {
    if (auto found = neighbour(direction_)) {
      trial_ = *found;
      return true;
    }
  }
  is_last_ = true;
  trial_ = default_;
  return !equal(best_, default_);
}

// The setting one step away from the best in one of the four directions; none if it is out of range, or was tried.
std::optional<FusionConfig> Autotune::neighbour(int direction) const {
  FusionConfig c = best_;
  const bool of_threshold = direction < 2;
  if (of_threshold ? !config_.threshold : !config_.delay) return {};
  if (of_threshold) {
    c.threshold = direction == 0 ? c.threshold / 4 : c.threshold * 4;
    if (c.threshold < kLeastThreshold || c.threshold > std::max(kMostThreshold, default_.threshold)) return {};
    // Above the bytes of a step a threshold divides nothing.
    if (static_cast<double>(std::min(c.threshold, best_.threshold)) >= base_bytes_) return {};
  } else {
    c.coalesce_ns = direction == 2 ? c.coalesce_ns / 2 : c.coalesce_ns * 2;
    if (c.coalesce_ns < kLeastDelayNs || c.coalesce_ns > kMostDelayNs) return {};
    const double longest = kLongestDelayOfStep * base_ * base_bytes_;
    if (direction == 3 && static_cast<double>(c.coalesce_ns) > longest) return {};
  }
  if (std::any_of(tried_.begin(), tried_.end(), [&](const FusionConfig& t) { return equal(t, c); })) return {};
  return c;
}

// Steps of other ranks than the measured ones tell nothing about a setting, and no change can be made meanwhile.
void Autotune::interrupt() {
  if (phase_ == Phase::Done) return;
  step_began_ = -1;
  if (is_trying()) {
    tried_.pop_back();  // it may be tried again
    if (is_last_) is_last_ = false;
    wanted_ = best_;
    return begin(Phase::Return, kSettleSteps);
  }
  if (phase_ == Phase::Baseline) begin(Phase::Baseline, config_.steps_per_sample);
}

std::optional<FusionConfig> Autotune::decide(int64_t now) {
  // A step that has not ended may have cost enough already.
  if (is_trying() && !wanted_ && step_began_ >= 0) {
    const double over = static_cast<double>(now - step_began_) - base_mean_ * base_bytes_;
    if (over > 0 && lost_steps(loss_ + over) > kLossLimit) {
      loss_ += over;
      step_began_ = -1;  // the next step that counts begins with the next marker
      end_trial("too slow");
    }
  }
  return std::exchange(wanted_, std::nullopt);
}

void Autotune::write(const char* verdict, double score) {
  if (!config_.log) return;
  const FusionConfig& s = is_trying() ? trial_ : best_;
  char line[160];
  std::snprintf(line, sizeof line, "%llu,%g,%g,%.6g,%s", static_cast<unsigned long long>(steps_),
                static_cast<double>(s.threshold) / (1 << 20), static_cast<double>(s.coalesce_ns) / 1e6,
                score > 0 ? 1e3 / score : 0.0, verdict);
  config_.log(line);
}

}  // namespace hvd::agreement
