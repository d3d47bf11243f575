// Fusion, the coordinator and the participant as plain objects: requests and messages in, batches and entries of the
// log out.
//
//   control_test          prints the names of the checks
//   control_test NAME     runs one; exits with 1 and a line for each failed expectation
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "control_helpers.h"
#include "engine/agreement/participant.h"
#include "engine/calls/request.h"

using namespace hvd;
using namespace hvd::native;

namespace {

using Batches = std::vector<std::string>;

Batches take_all(Fusion& fusion) {
  Batches found;
  while (!fusion.empty()) {
    const auto batch = fusion.take_batch();
    found.push_back(std::to_string(batch.set) + ": " + names(batch.items));
  }
  return found;
}

// The batches of float32 requests "a", "b", ... with these sizes in bytes.
Batches batches_of(uint64_t threshold, const std::vector<int64_t>& sizes) {
  Fusion fusion({threshold, kDelay});
  char name = 'a';
  for (int64_t bytes : sizes) fusion.add(0, item(std::string(1, name++), {.elements = {bytes / 4}}), false, 0);
  return take_all(fusion);
}

// ------------------------------------------------------------------------------------------------------------ fusion

void fusion_puts_equal_requests_into_one_batch() { EXPECT((batches_of(1024, {16, 16, 16}) == Batches{"0: a b c"})); }

void fusion_separates_what_cannot_share_a_batch() {
  const std::map<std::string, Options> other = {
      {"dtype", {.dtype = HVD_FLOAT64}},
      {"reduction", {.op = HVD_MAX}},
      {"operation", {.kind = base::OpKind::Allgather}},
      {"device", {.device = "moon"}},
      {"factor", {.prescale = 0.5}},
  };
  for (const auto& [name, options] : other) {
    Fusion fusion({1024, kDelay});
    fusion.add(0, item("a"), false, 0);
    fusion.add(0, item(name, options), false, 0);
    fusion.add(0, item("b"), false, 0);
    EXPECT((take_all(fusion) == Batches{"0: a b", "0: " + name}));
  }
}

void fusion_separates_process_sets() {
  Fusion fusion({1024, kDelay});
  fusion.add(1, item("a"), false, 0);
  fusion.add(0, item("b"), false, 0);
  fusion.add(1, item("c"), false, 0);
  EXPECT((take_all(fusion) == Batches{"1: a c", "0: b"}));
}

void fusion_fills_batches_up_to_the_threshold() {
  EXPECT((batches_of(64, {16, 16, 16, 16, 16}) == Batches{"0: a b c d", "0: e"}));
  EXPECT((batches_of(64, {32, 48, 32}) == Batches{"0: a c", "0: b"}));  // a later one that fits goes ahead
  EXPECT((batches_of(64, {128, 16}) == Batches{"0: a", "0: b"}));       // alone, although above the threshold
}

void fusion_with_threshold_0_is_off() { EXPECT((batches_of(0, {16, 16}) == Batches{"0: a", "0: b"})); }

void fusion_keeps_groups_together() {
  Fusion fusion({64, kDelay});
  fusion.add(0, item("a"), false, 0);
  fusion.add(0, item("group", {.elements = {8, 8}}), false, 0);  // 64 bytes: fits into a batch of its own only
  fusion.add(0, item("b"), false, 0);
  EXPECT((take_all(fusion) == Batches{"0: a b", "0: group"}));
}

void fusion_leaves_groups_of_mixed_types_alone() {
  Fusion fusion({1024, kDelay});
  SignatureFields f;
  f.tensors = {{HVD_FLOAT32, {4}}, {HVD_FLOAT64, {4}}};
  const auto mixed = std::make_shared<const Signature>(std::move(f));
  for (const char* name : {"a", "b"}) fusion.add(0, {std::make_shared<const std::string>(name), mixed}, false, 0);
  EXPECT((take_all(fusion) == Batches{"0: a", "0: b"}));
}

void fusion_coalesces_for_its_delay() {
  Fusion fusion({1024, kDelay});
  EXPECT(!fusion.due(0) && fusion.next_deadline() == INT64_MAX);
  fusion.add(0, item("a"), false, 100);
  fusion.add(0, item("b"), false, 600);  // does not begin the delay anew
  EXPECT(!fusion.due(100 + kDelay - 1) && fusion.due(100 + kDelay));
  EXPECT(fusion.next_deadline() == 100 + kDelay);
  take_all(fusion);
  fusion.add(0, item("c"), false, 5000);
  EXPECT(fusion.next_deadline() == 5000 + kDelay);
}

void fusion_does_not_coalesce_urgent_or_large_requests() {
  Fusion fusion({1u << 30, kDelay});
  fusion.add(0, item("a"), true, 0);
  EXPECT(fusion.due(0));
  take_all(fusion);
  fusion.add(0, item("b"), false, 0);
  EXPECT(!fusion.due(0));  // the urgent request has left
  fusion.make_urgent();
  EXPECT(fusion.due(0));
  take_all(fusion);
  fusion.make_urgent();  // of no request
  fusion.add(0, item("c"), false, 0);
  EXPECT(!fusion.due(0));
  fusion.add(0, item("large", {.elements = {64 << 10}}), false, 0);  // 256 KiB
  EXPECT(fusion.due(0));
}

// ------------------------------------------------------------------------------------------------------- coordinator

using Log = std::vector<std::string>;

void coordinator_waits_for_all_ranks() {
  Root root(3);
  root.ready(0, item("a"));
  root.ready(2, item("a"));
  EXPECT(root.entries().empty() && root.coordinator.waiting());
  root.ready(1, item("a"));
  EXPECT(!root.coordinator.waiting());
  EXPECT((root.entries() == Log{"EXEC a"}));
}

void coordinator_keeps_the_order_of_decisions() {
  Root root(2);
  root.ready(0, item("a"));
  root.ready(0, item("b", {.dtype = HVD_INT32}));
  root.ready(1, item("b", {.dtype = HVD_INT32}));
  root.ready(1, item("a"));
  EXPECT((root.entries() == Log{"EXEC b", "EXEC a"}));
}

void coordinator_coalesces_until_the_delay_is_over() {
  Root root(2);
  root.all_ready(item("a"), false, 100);
  EXPECT(root.entries(100 + kDelay - 1).empty());
  root.all_ready(item("b"), false, 500);
  EXPECT(root.coordinator.next_deadline() == 100 + kDelay);
  EXPECT((root.entries(100 + kDelay) == Log{"EXEC a b"}));
}

void coordinator_forms_batches_at_once_if_a_caller_waits() {
  Root root(2);
  root.all_ready(item("a"));
  root.all_ready(item("b"), true);
  EXPECT((root.entries(0) == Log{"EXEC a b"}));
  root.all_ready(item("c"));
  EXPECT(root.entries(0).empty());
  root.named(UpMessage::Want, 1, "c");
  EXPECT((root.entries(0) == Log{"EXEC c"}));
  root.ready(0, item("d"));
  root.named(UpMessage::Want, 0, "d");  // before the other rank has submitted it
  root.ready(1, item("d"));
  EXPECT((root.entries(0) == Log{"EXEC d"}));
}

void coordinator_fails_different_signatures_and_goes_on() {
  Root root(2);
  root.ready(0, item("a"));
  root.ready(1, item("a", {.elements = {5}}));
  EXPECT((root.entries() == Log{"FAIL a"}));
  root.all_ready(item("a"));
  EXPECT((root.entries() == Log{"EXEC a"}));
}

void coordinator_counts_poison_as_a_submission() {
  Root root(2);
  root.named(UpMessage::Poison, 0, "a");
  root.ready(0, item("a"));  // the call after the failed one
  EXPECT(root.entries().empty());
  root.ready(1, item("a"));
  EXPECT((root.entries() == Log{"FAIL a poisoned"}));
  root.ready(1, item("a"));
  EXPECT((root.entries() == Log{"EXEC a"}));
}

void known_batch_runs_when_all_ranks_have_arrived() {
  Root root(2);
  root.learn();
  for (uint32_t gen = 0; gen < 3; ++gen) {
    root.batch(UpMessage::Arrive, 1, 0, gen);
    EXPECT(root.entries().empty());
    root.batch(UpMessage::Arrive, 0, 0, gen);
    EXPECT((root.entries() == Log{"RUN 0." + std::to_string(gen)}));
  }
}

void known_batch_needs_equal_batches_in_a_row() {
  Root root(1, 2);
  const auto step = [&](const std::vector<std::string>& requests) {
    for (const auto& name : requests) root.all_ready(item(name));
    return root.entries();
  };
  EXPECT((step({"a", "b"}) == Log{"EXEC a b"}));
  EXPECT((step({"a", "b"}) == Log{"EXEC a b"}));
  EXPECT((step({"a", "c"}) == Log{"EXEC a c"}));  // begins to count anew
  EXPECT((step({"a", "b"}) == Log{"EXEC a b"}));
  EXPECT((step({"a", "b"}) == Log{"EXEC a b"}));
  EXPECT((step({"a", "b"}) == Log{"EXEC a b as 0"}));
}

void known_batch_is_never_made_of_one_or_of_unnamed_requests() {
  Root root(1);
  for (int i = 0; i < 5; ++i) {
    root.all_ready(item("a"));
    EXPECT((root.entries() == Log{"EXEC a"}));
    root.all_ready(item("x", {.repeats = false}));
    root.all_ready(item("y", {.repeats = false}));
    EXPECT((root.entries() == Log{"EXEC x y"}));
  }
}

void known_batch_is_dissolved_and_its_members_go_singly() {
  Root root(2);
  root.learn();
  root.batch(UpMessage::Arrive, 1, 0, 0);
  root.batch(UpMessage::AskDissolve, 0, 0, 0);
  EXPECT((root.entries() == Log{"DISSOLVE 0.0"}));
  root.batch(UpMessage::AskDissolve, 0, 0, 0);  // once more: no effect
  EXPECT(root.entries().empty());
  root.ready(0, item("b"));  // the arrival of rank 1 counts for each member, and as urgent
  EXPECT((root.entries(0) == Log{"EXEC b"}));
  root.ready(0, item("a"));
  EXPECT((root.entries(0) == Log{"EXEC a"}));
}

void known_batch_arrival_that_crosses_the_dissolution_counts() {
  Root root(2);
  root.learn();
  root.batch(UpMessage::AskDissolve, 0, 0, 0);
  root.batch(UpMessage::Arrive, 1, 0, 0);
  root.ready(0, item("a"));
  root.ready(0, item("b"));
  EXPECT((root.entries(0) == Log{"DISSOLVE 0.0", "EXEC a b"}));
}

// Makes `names` a known batch of a root that asks for one repetition. The log's last entry.
std::string define(Root& root, const std::vector<std::string>& names, int64_t now = INT64_MAX - 1) {
  Log log;
  for (int i = 0; i < 2; ++i) {
    for (const auto& name : names) root.all_ready(item(name));
    log = root.entries(now);
  }
  return log.empty() ? "" : log.back();
}

void known_batch_number_is_free_when_all_ranks_know_of_the_end() {
  Root root(2);
  root.learn();
  root.batch(UpMessage::AskDissolve, 0, 0, 0);
  root.batch(UpMessage::Dissolved, 0, 0, 0);
  EXPECT(define(root, {"c", "d"}) == "EXEC c d as 1");  // an arrival of rank 1 may be under way
  root.batch(UpMessage::Arrive, 1, 0, 0);
  root.batch(UpMessage::Dissolved, 1, 0, 0);
  root.ready(0, item("a"));
  root.ready(0, item("b"));
  EXPECT(root.entries(0).back() == "EXEC a b");
  EXPECT(define(root, {"e", "f"}) == "EXEC e f as 0");
  root.batch(UpMessage::Arrive, 0, 0, 0);
  root.batch(UpMessage::Arrive, 1, 0, 0);
  EXPECT((root.entries() == Log{"RUN 0.0"}));
  for (const auto type : {UpMessage::Dissolved, UpMessage::Arrive, UpMessage::AskDissolve}) {
    bool refused = false;
    try {
      root.batch(type, 0, 2, 0);  // no batch has this number
    } catch (const WireError&) {
      refused = true;
    }
    EXPECT(refused);
  }
}

void known_batch_that_is_idle_longest_makes_room() {
  Root root(1);
  const auto names = [](int k) { return std::vector{"a" + std::to_string(k), "b" + std::to_string(k)}; };
  const int most = 8192;
  constexpr int64_t kSecond = 1'000'000'000, kStart = 1000 * kSecond;
  for (int k = 0; k < most; ++k) EXPECT(define(root, names(k), kStart).ends_with(" as " + std::to_string(k)));
  root.batch(UpMessage::Arrive, 0, 0, 0, kStart + 6 * kSecond);
  EXPECT((root.entries(kStart + 6 * kSecond) == Log{"RUN 0.0"}));
  for (int64_t s = 6; s < 10; ++s) EXPECT(define(root, names(most), kStart + s * kSecond) == "EXEC a8192 b8192");
  for (const auto& name : names(most)) root.all_ready(item(name));
  EXPECT((root.entries(kStart + 10 * kSecond) == Log{"DISSOLVE 1.0", "EXEC a8192 b8192"}));
  root.batch(UpMessage::Dissolved, 0, 1, 0);
  for (const auto& name : names(most)) root.all_ready(item(name));
  EXPECT((root.entries(kStart + 10 * kSecond) == Log{"EXEC a8192 b8192 as 1"}));
}

// Each of more batches than there are numbers comes once a second.
void known_batches_of_a_long_cycle_stay() {
  Root root(1);
  const auto names = [](int k) { return std::vector{"a" + std::to_string(k), "b" + std::to_string(k)}; };
  const int most = 8192, all = most + 100;
  int64_t now = 1'000'000'000'000;
  for (int k = 0; k < most; ++k) define(root, names(k), now);
  for (uint32_t turn = 0; turn < 12; ++turn, now += 1'000'000'000) {
    for (uint32_t k = 0; k < most; ++k) root.batch(UpMessage::Arrive, 0, k, turn, now);
    EXPECT(root.entries(now).size() == most);
    for (int k = most; k < all; ++k) EXPECT(define(root, names(k), now).find(" as ") == std::string::npos);
  }
}

// Takes the messages and decisions of a participant.
struct Rank1 final : Participant::Outbox, Participant::Events {
  std::vector<UpMessage> sent;
  size_t executed = 0;
  Participant participant{1, 2, kDelay, *this, *this};

  void send(UpMessage m) override { sent.push_back(std::move(m)); }
  void execute(SetId, std::vector<BatchItem> items) override { executed += items.size(); }
  void fail(const RequestRef&, base::Failure, const std::string&) override {}
  void joined(Rank) override {}
  void closed(Rank, const std::string&) override {}
  void set_added(SetId, const std::vector<Rank>&, RequestRef, const NameRef&) override {}
  void set_removed(SetId, RequestRef) override {}

  void submit(const std::string& name) {
    participant.submit(0, item(name), std::make_shared<calls::Request>(), Hurry::None, 0);
  }
  void define() {
    for (const char* name : {"a", "b"}) submit(name);
    Entry e;
    e.items = {item("a"), item("b")};
    e.defines = true;
    participant.replay(e);
  }
  // Whether the participant takes the entry RUN of the batch's first generation.
  bool runs() {
    Entry e;
    e.type = Entry::Run;
    try {
      participant.replay(e);
      return true;
    } catch (const std::logic_error&) {
      return false;
    }
  }

 private:
};

void participant_runs_a_known_batch_only_after_its_arrival() {
  Rank1 early, joined, late;
  early.define();
  for (const char* name : {"a", "b"}) early.submit(name);
  early.participant.join();
  EXPECT(early.runs() && early.executed == 4);
  joined.define();
  joined.participant.join();
  EXPECT(!joined.runs() && joined.executed == 2);
  late.define();
  late.submit("a");
  EXPECT(!late.runs() && late.executed == 2);
}

void known_batch_that_was_run_is_not_dissolved_by_an_old_request() {
  Root root(2);
  root.learn();
  root.batch(UpMessage::Arrive, 0, 0, 0);
  root.batch(UpMessage::Arrive, 1, 0, 0);
  root.batch(UpMessage::AskDissolve, 0, 0, 0);
  EXPECT((root.entries() == Log{"RUN 0.0"}));
  root.batch(UpMessage::AskDissolve, 0, 0, 1);
  EXPECT((root.entries() == Log{"DISSOLVE 0.1"}));
}

void known_batch_ends_with_poison_and_with_join() {
  Root root(2);
  root.learn();
  root.named(UpMessage::Poison, 0, "b");
  EXPECT((root.entries() == Log{"DISSOLVE 0.0"}));
  Root other(2);
  other.learn();
  other.batch(UpMessage::Arrive, 0, 0, 0);
  other.coordinator.receive(UpMessage::of(UpMessage::Join, 1), 0);
  EXPECT((other.entries() == Log{"DISSOLVE 0.0", "EXEC a b"}));  // rank 1 stands in with neutral data
  other.coordinator.receive(UpMessage::of(UpMessage::Join, 0), 0);
  EXPECT((other.entries() == Log{"JOINED 0"}));
}

void coordinator_executes_decided_requests_before_the_end() {
  Root root(2);
  root.all_ready(item("a"));
  root.ready(0, item("b"));
  root.coordinator.receive(UpMessage::of(UpMessage::Leave, 1), 0);
  EXPECT((root.entries() == Log{"EXEC a", "CLOSE"}));
  root.ready(1, item("b"));
  EXPECT(root.entries().empty());
}

void coordinator_names_the_ranks_that_a_stalled_request_waits_for() {
  Root root(3);
  root.ready(1, item("late"), false, 100);
  int64_t oldest = 0;
  EXPECT(root.coordinator.stalled(99, &oldest).empty() && oldest == 100);
  const auto found = root.coordinator.stalled(100, &oldest);
  EXPECT(found.size() == 1 && found[0].name == "late" && (found[0].missing == std::vector<Rank>{0, 2}));
}

void coordinator_switches_the_timeline_between_two_decisions() {
  Root root(2);
  root.all_ready(item("a"));
  root.coordinator.observe(1, "t.json", 0);
  root.all_ready(item("b"));
  EXPECT((root.entries() == Log{"EXEC a", "OBSERVE 1 t.json", "EXEC b"}));
}

// -------------------------------------------------------------------------------------------------------- sets of
// ranks

std::set<Rank> ranks_in(const RankSet& set) {
  std::set<Rank> found;
  set.for_each([&](Rank r) { found.insert(r); });
  return found;
}

void rank_sets_are_sets() {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 2000; ++round) {
    const int world = 1 + below(round % 2 ? 300 : 70);
    RankSet ours[3];
    std::set<Rank> theirs[3];
    for (int k = 0; k < 3; ++k) {
      for (int n = below(6); n > 0; --n) {
        const Rank first = below(world), end = std::min(world, first + below(150));
        ours[k].insert_range(first, end);
        for (Rank r = first; r < end; ++r) theirs[k].insert(r);
        const Rank one = below(world);
        EXPECT(ours[k].insert(one) == theirs[k].insert(one).second);
      }
    }
    const auto in = [](const std::set<Rank>& set, Rank r) { return set.count(r) > 0; };
    bool within = true, within_two = true, meets = false;
    for (Rank r : theirs[0]) {
      within &= in(theirs[1], r);
      within_two &= in(theirs[1], r) || in(theirs[2], r);
      meets |= in(theirs[1], r);
    }
    EXPECT(ours[0].within(ours[1]) == within);
    EXPECT(ours[0].within(ours[1], ours[2]) == within_two);
    EXPECT(ours[0].intersects(ours[1]) == meets);
    EXPECT(ours[0].first() == (theirs[0].empty() ? -1 : *theirs[0].begin()));
    EXPECT(ours[0].last() == (theirs[0].empty() ? -1 : *theirs[0].rbegin()));
    ours[0].insert_all(ours[1]);
    theirs[0].insert(theirs[1].begin(), theirs[1].end());
    EXPECT(ranks_in(ours[0]) == theirs[0] && ours[0].size() == theirs[0].size());
    ours[0].erase_all(ours[2]);
    for (const Rank r : theirs[2]) theirs[0].erase(r);
    EXPECT(ranks_in(ours[0]) == theirs[0] && ours[0].size() == theirs[0].size());
  }
}

// A message of several ranks, put together by a leader, of which one has submitted this round already.
void coordinator_takes_a_merged_message_about_two_rounds() {
  Root root(3);
  root.ready(0, item("a"));
  UpMessage merged = UpMessage::of(UpMessage::Ready, 0);
  merged.item = item("a");
  merged.ranks.insert_range(0, 3);
  root.coordinator.receive(merged, 0);
  EXPECT((root.entries() == Batches{"EXEC a"}));
  root.ready(1, item("a"));
  root.ready(2, item("a"));
  EXPECT((root.entries() == Batches{"EXEC a"}));
}

const named_checks::List kChecks = {
    CHECK(fusion_puts_equal_requests_into_one_batch),
    CHECK(fusion_separates_what_cannot_share_a_batch),
    CHECK(fusion_separates_process_sets),
    CHECK(fusion_fills_batches_up_to_the_threshold),
    CHECK(fusion_with_threshold_0_is_off),
    CHECK(fusion_keeps_groups_together),
    CHECK(fusion_leaves_groups_of_mixed_types_alone),
    CHECK(fusion_coalesces_for_its_delay),
    CHECK(fusion_does_not_coalesce_urgent_or_large_requests),
    CHECK(coordinator_waits_for_all_ranks),
    CHECK(coordinator_keeps_the_order_of_decisions),
    CHECK(coordinator_coalesces_until_the_delay_is_over),
    CHECK(coordinator_forms_batches_at_once_if_a_caller_waits),
    CHECK(coordinator_fails_different_signatures_and_goes_on),
    CHECK(coordinator_counts_poison_as_a_submission),
    CHECK(known_batch_runs_when_all_ranks_have_arrived),
    CHECK(known_batch_needs_equal_batches_in_a_row),
    CHECK(known_batch_is_never_made_of_one_or_of_unnamed_requests),
    CHECK(known_batch_is_dissolved_and_its_members_go_singly),
    CHECK(known_batch_arrival_that_crosses_the_dissolution_counts),
    CHECK(known_batch_number_is_free_when_all_ranks_know_of_the_end),
    CHECK(known_batch_that_is_idle_longest_makes_room),
    CHECK(known_batches_of_a_long_cycle_stay),
    CHECK(participant_runs_a_known_batch_only_after_its_arrival),
    CHECK(known_batch_that_was_run_is_not_dissolved_by_an_old_request),
    CHECK(known_batch_ends_with_poison_and_with_join),
    CHECK(coordinator_executes_decided_requests_before_the_end),
    CHECK(coordinator_names_the_ranks_that_a_stalled_request_waits_for),
    CHECK(coordinator_switches_the_timeline_between_two_decisions),
    CHECK(coordinator_takes_a_merged_message_about_two_rounds),
    CHECK(rank_sets_are_sets),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
