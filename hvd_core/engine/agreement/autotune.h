// Autotune: searches, while a job trains, for the fusion threshold and the coalescing delay with the shortest steps.
//
// It is notified of each batch that the root logs. A step lasts from one execution of a repeating request, the marker,
// to the next; its time is divided by its bytes. After steps that count for nothing the search measures the best
// setting that it knows, tries a neighbour of it, and keeps the faster one. A trial ends early, also within a step,
// when it has cost more than some steps of the best setting; afterwards the job rests at the best setting for 40 times
// the loss. So any 100 steps take at most 5 % longer than they would at the best setting known, which is at most the
// default's time: the default is measured last once more, against the best, and counts as better unless it is beaten.
//
// A plain data structure: no clock, no thread, no I/O. Used by the coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/agreement/fusion.h"
#include "engine/agreement/messages.h"

namespace hvd::agreement {

struct AutotuneConfig {
  bool on = false;
  bool threshold = true, delay = true;  // what may change; the user's own values stay
  uint32_t warmup_samples = 3, steps_per_sample = 10, max_samples = 20;
  std::function<void(const std::string&)> log;  // takes the lines of a table; null: they are not made
};

class Autotune {
 public:
  // `start`: the default, with which the job begins.
  Autotune(AutotuneConfig config, FusionConfig start);

  // A batch of these requests was logged.
  void executed(const std::vector<Item>& items, int64_t now);
  // The setting that is to be used from now on, if it is another one.
  std::optional<FusionConfig> decide(int64_t now);
  // A rank has joined: what was measured since the last setting began counts for nothing. Until all have joined the
  // coordinator calls neither of the two above.
  void interrupt();

  bool is_done() const { return phase_ == Phase::Done; }
  const FusionConfig& best() const { return best_; }

  // The first line of the log.
  static const char* header();

 private:
  enum class Phase {
    Warmup,    // steps that count for nothing
    Return,    // at the best setting again: known batches form anew, which belongs to the cost of the trial
    Rest,      // at the best setting, after a loss
    Baseline,  // measures the best setting
    Settle,    // a trial's first steps, in which known batches form anew
    Trial,
    Done
  };
  bool find_marker(const std::vector<Item>& items);
  void end_step(int64_t now);
  void begin(Phase phase, uint32_t steps);
  void end_baseline();
  void end_trial(const char* verdict);
  void rest();
  bool is_trying() const { return phase_ == Phase::Trial || phase_ == Phase::Settle; }
  double lost_steps(double ns) const { return ns / (base_mean_ * base_bytes_); }
  bool next_candidate();
  std::optional<FusionConfig> neighbour(int direction) const;
  void write(const char* verdict, double score);

  const AutotuneConfig config_;
  const FusionConfig default_;
  FusionConfig best_, trial_;
  std::vector<FusionConfig> tried_;
  std::optional<FusionConfig> wanted_;  // for decide()

  // The marker: a name that comes again and again. Batches without it make the search for one begin again.
  std::string marker_;
  std::unordered_map<std::string, uint32_t> seen_;
  uint64_t batches_ = 0, batches_per_step_ = 0;  // since the last marker; at the last marker

  Phase phase_ = Phase::Warmup;
  uint32_t steps_left_ = 0;  // of the phase
  int64_t step_began_ = -1;
  uint64_t step_bytes_ = 0;
  std::vector<double> sample_;                         // of each step of the phase: ns, bytes
  double base_ = 0, base_mean_ = 0, base_spread_ = 0;  // of the best setting: the median, the mean, the deviation
  double base_bytes_ = 0;                              // of one step
  double loss_ = 0;                                    // ns that the last trial and its end have cost
  uint64_t steps_ = 0;
  uint32_t samples_ = 0;
  int direction_ = 0, failed_directions_ = 0;
  bool is_last_ = false;  // the trial of the default against the best
};

}  // namespace hvd::agreement
