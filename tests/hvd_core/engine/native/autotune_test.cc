// Autotune on a virtual clock: jobs whose steps cost what a formula says, and the coordinator that changes its setting.
//
//   autotune_test          prints the names of the checks
//   autotune_test NAME     runs one; exits with 1 and a line for each failed expectation
#include "engine/agreement/autotune.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "control_helpers.h"

using namespace hvd;
using namespace hvd::native;

namespace {

constexpr FusionConfig kStart{128u << 20, 1'000'000};
constexpr int kMessages = 50;  // moments of a step at which the coordinator looks

// A job that trains: a step of 100 tensors of 1 MiB takes `cost(setting)` ns. Steps in which batches form anew take
// longer.
class Job {
 public:
  Job(std::function<double(const FusionConfig&)> cost, AutotuneConfig config, double noise = 0)
      : cost_(std::move(cost)), noise_(noise), tuner_(with_log(std::move(config)), kStart) {}

  void step() {
    const double begin = now_;
    noise_factor_ = 1 + noise_ * (static_cast<double>((seed_ = seed_ * 1103515245 + 12345) >> 16 & 1023) / 1023 - 0.3);
    for (int i = 0; i < kMessages; ++i) {
      now_ += cost_(setting) * noise_factor_ * (fresh_ > 0 ? 1.1 : 1) / kMessages;
      look();
    }
    if (fresh_ > 0) --fresh_;
    tuner_.executed(items_, at());
    look();
    took.push_back(now_ - begin);
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  void pause(double ns) {
    now_ += ns;
    look();
  }
  // A rank joins: the others make steps of a tenth of the time, in which the coordinator neither counts nor changes.
  void joined_steps(int count) {
    tuner_.interrupt();
    now_ += count * cost_(setting) / 10;
  }
  // The most that any 100 steps took, over 100 steps at the default. Pauses do not count.
  double worst_100() const {
    double most = 0, sum = 0;
    for (size_t i = 0; i < took.size(); ++i) {
      sum += took[i];
      if (i >= 100) sum -= took[i - 100];
      if (i >= 99) most = std::max(most, sum);
    }
    return most / (100 * cost_(kStart) * (1 + noise_ * 0.2));
  }
  const Autotune& tuner() const { return tuner_; }

  FusionConfig setting = kStart;
  std::vector<double> took;
  std::vector<std::string> log;
  int changes = 0;

 private:
  AutotuneConfig with_log(AutotuneConfig c) {
    c.on = true;
    c.log = [this](const std::string& line) { log.push_back(line); };
    return c;
  }
  int64_t at() const { return static_cast<int64_t>(now_); }
  void look() {
    if (const auto next = tuner_.decide(at())) {
      setting = *next;
      fresh_ = 4;
      ++changes;
    }
  }

  std::function<double(const FusionConfig&)> cost_;
  double noise_, noise_factor_ = 1, now_ = 0;
  uint32_t seed_ = 1;
  int fresh_ = 0;
  std::vector<Item> items_ = {item("a", {.elements = {1 << 18}}), item("b", {.elements = {99 << 18}})};
  Autotune tuner_;
};

double delay_ms(const FusionConfig& s) { return static_cast<double>(s.coalesce_ns) / 1e6; }
double threshold_mib(const FusionConfig& s) { return static_cast<double>(s.threshold) / (1 << 20); }

// Best at a threshold of 8 MiB and a delay of 0.25 ms, and 1.5 times slower at the default.
double valley(const FusionConfig& s) {
  const double off = 0.12 * std::abs(std::log2(threshold_mib(s) / 8)) + 0.06 * std::abs(std::log2(delay_ms(s) / 0.25));
  return 20e6 * (1 + 0.9 * off);
}

void the_best_of_a_valley_is_found_and_kept() {
  Job job(valley, {});
  job.steps(3000);
  EXPECT(job.tuner().is_done());
  EXPECT(job.setting.threshold == 8u << 20 && job.setting.coalesce_ns == 250'000);
  EXPECT(job.worst_100() <= 1.05);
  const int changes = job.changes;
  job.steps(500);
  EXPECT(job.changes == changes);
  EXPECT(valley(job.setting) < 0.75 * valley(kStart));
}

void noise_does_not_keep_it_from_the_best() {
  Job job(valley, {}, 0.2);
  job.steps(4000);
  EXPECT(job.tuner().is_done());
  EXPECT(valley(job.setting) < 0.8 * valley(kStart));
}

void no_100_steps_are_5_percent_slower_where_the_default_is_the_best() {
  for (double penalty : {0.03, 0.1, 0.5, 3.0, 100.0}) {
    const auto cost = [=](const FusionConfig& s) {
      return s.threshold == kStart.threshold && s.coalesce_ns == kStart.coalesce_ns ? 20e6 : 20e6 * (1 + penalty);
    };
    Job job(cost, {});
    job.steps(3000);
    EXPECT(job.tuner().is_done());
    EXPECT(job.setting.threshold == kStart.threshold && job.setting.coalesce_ns == kStart.coalesce_ns);
    if (job.worst_100() > 1.05) std::printf("penalty %g: %g\n", penalty, job.worst_100()), ++named_checks::failures;
  }
}

void a_setting_that_is_very_slow_is_left_within_its_first_step() {
  const auto cost = [](const FusionConfig& s) { return s.threshold == kStart.threshold ? 20e6 : 20e9; };
  Job job(cost, {.delay = false, .log = nullptr});
  for (int i = 0; i < 2000 && !job.tuner().is_done(); ++i) job.step();
  const auto longest = *std::max_element(job.took.begin(), job.took.end());
  EXPECT(longest < 25 * 20e6);  // one look of fifty comes after 400 ms
  EXPECT(std::count_if(job.log.begin(), job.log.end(), [](const auto& l) { return l.ends_with("too slow"); }) == 1);
}

void no_difference_means_no_change() {
  Job job([](const FusionConfig&) { return 5e6; }, {}, 0.3);
  job.steps(4000);
  EXPECT(job.tuner().is_done());
  EXPECT(job.setting.threshold == kStart.threshold && job.setting.coalesce_ns == kStart.coalesce_ns);
}

void a_value_of_the_user_stays() {
  Job threshold(valley, {.delay = false, .log = nullptr}), delay(valley, {.threshold = false, .log = nullptr}),
      neither(valley, {.threshold = false, .delay = false, .log = nullptr});
  for (Job* job : {&threshold, &delay, &neither}) job->steps(3000);
  EXPECT(threshold.setting.threshold == 8u << 20 && threshold.setting.coalesce_ns == kStart.coalesce_ns);
  EXPECT(delay.setting.threshold == kStart.threshold && delay.setting.coalesce_ns == 250'000);
  EXPECT(neither.changes == 0 && neither.tuner().is_done());
}

void a_pause_of_the_program_ends_a_trial_and_not_the_search() {
  Job job(valley, {});
  for (int i = 0; i < 6000 && !job.tuner().is_done(); ++i) {
    job.step();
    if (i % 97 == 0) job.pause(3600e9);
  }
  EXPECT(job.tuner().is_done());
  EXPECT(valley(job.setting) < valley(kStart));
}

void a_join_makes_no_setting_the_best() {
  const auto cost = [](const FusionConfig& s) {
    return s.threshold == kStart.threshold && s.coalesce_ns == kStart.coalesce_ns ? 20e6 : 20.4e6;
  };
  for (int every : {7, 41, 97}) {
    Job job(cost, {});
    for (int i = 1; i <= 4000; ++i) {
      job.step();
      if (i % every == 0) job.joined_steps(20);
      if (!job.log.empty() && job.log.back().ends_with(",better")) ++named_checks::failures;
    }
    job.steps(2000);
    EXPECT(job.tuner().is_done());
    EXPECT(job.setting.threshold == kStart.threshold && job.setting.coalesce_ns == kStart.coalesce_ns);
  }
}

void it_tries_no_more_settings_than_it_may() {
  Job job(valley, {.max_samples = 2, .log = nullptr});
  job.steps(1500);
  // Two trials, and the default against what they found.
  EXPECT(job.tuner().is_done());
  const auto trials = std::count_if(job.log.begin(), job.log.end(),
                                    [](const auto& l) { return l.ends_with("better") || l.ends_with("too slow"); });
  EXPECT(trials == 3);
  EXPECT(job.log[0] == Autotune::header());
  EXPECT(job.log.back().ends_with(",chosen"));
}

void a_step_begins_with_a_name_that_comes_again_and_again() {
  Autotune tuner({.on = true, .warmup_samples = 0, .steps_per_sample = 1, .log = nullptr}, kStart);
  int64_t now = 0;
  const auto run = [&](const char* name) { tuner.executed({item(name, {.elements = {1 << 20}})}, now += 1'000'000); };
  for (int i = 0; i < 2; ++i) run("broadcast");
  bool has_tried = false;
  for (int i = 0; i < 40 && !has_tried; ++i) {
    run("a"), run("b"), run("c");
    has_tried = tuner.decide(now).has_value();
  }
  EXPECT(has_tried);
}

// R16: known batches end, and batches form anew after the entry.
void the_coordinator_changes_its_setting_between_two_batches() {
  Root root(2, 1, {1024, 1'000'000},
            {.on = true, .threshold = false, .warmup_samples = 0, .steps_per_sample = 1, .log = nullptr});
  int64_t now = 1'000'000'000;
  uint32_t gen = 0;
  bool is_known = false;
  const auto step = [&] {
    for (Rank r = 0; is_known && r < 2; ++r) root.batch(UpMessage::Arrive, r, 0, gen, now);
    if (is_known) ++gen;
    for (const char* name : {"a", "b"})
      if (!is_known) root.all_ready(item(name), false, now);
    now += 100'000'000;
    const auto log = root.entries(now);
    is_known = is_known || log.back() == "EXEC a b as 0";
    return log;
  };
  std::vector<std::string> log;
  for (int i = 0; i < 20 && (log.empty() || !log.back().starts_with("TUNE")); ++i) log = step();
  EXPECT(log.size() == 3 && log[0].starts_with("RUN 0") && log[1].starts_with("DISSOLVE 0"));
  EXPECT(log.back() == "TUNE 500000");
  is_known = false;
  EXPECT((step() == std::vector<std::string>{"EXEC a b"}));
}

const named_checks::List kChecks = {
    CHECK(the_best_of_a_valley_is_found_and_kept),
    CHECK(noise_does_not_keep_it_from_the_best),
    CHECK(no_100_steps_are_5_percent_slower_where_the_default_is_the_best),
    CHECK(a_setting_that_is_very_slow_is_left_within_its_first_step),
    CHECK(no_difference_means_no_change),
    CHECK(a_value_of_the_user_stays),
    CHECK(a_pause_of_the_program_ends_a_trial_and_not_the_search),
    CHECK(a_join_makes_no_setting_the_best),
    CHECK(it_tries_no_more_settings_than_it_may),
    CHECK(a_step_begins_with_a_name_that_comes_again_and_again),
    CHECK(the_coordinator_changes_its_setting_between_two_batches),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
