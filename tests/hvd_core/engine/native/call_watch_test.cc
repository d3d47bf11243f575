// The watch over calls into backends, at times that a check chooses: what it asks of the engine, and when.
//
//   call_watch_test          prints the names of the checks
//   call_watch_test NAME     runs one; exits with 1 and a line for each failed expectation
#include "engine/watch/call_watch.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "named_checks.h"

namespace {

using hvd::plugins::Call;
using hvd::plugins::CallScope;

constexpr int64_t kSecond = 1'000'000'000, kHour = 3600 * kSecond, kLimit = 600 * kSecond, kEnd = 60 * kSecond;
const std::string kName = "x";

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// An engine that notes what it is asked for.
struct Engine final : hvd::watch::CallWatch::Host {
  bool ended = false, closing = false;
  std::string job_end, left, process_end;
  hvd::plugins::DriverRecord driver;
  hvd::watch::CallWatch watch{driver, {0, kLimit, 30 * kSecond, kEnd}, *this};
  int64_t time = kHour;

  bool stopped() const override { return ended; }
  bool is_closing() const override { return closing; }
  void end_job(const std::string& cause) override { job_end = cause; }
  bool leave_driver_behind(uint64_t, const std::string& cause) override {
    left = cause;
    return ended = true;
  }
  void end_process(const std::string& cause) override { process_end = cause; }

  // Looks at the times that the watch asks for.
  void pass(int64_t ns) {
    for (const int64_t until = time + ns; time < until;) {
      const int64_t next = watch.look(time);
      EXPECT(next != INT64_MAX);
      if (next == INT64_MAX) return;
      time = next;
    }
  }
  // This thread drives, and makes the calls.
  void begin_operation() {
    driver.note_driver();
    driver.begin_operation(kName, 0, 8);
  }
  bool asked() const { return !job_end.empty() || !left.empty() || !process_end.empty(); }
};

void time_in_which_the_process_was_stopped_does_not_count() {
  Engine e;
  e.begin_operation();
  const CallScope call(Call::comm_req_wait, kName);
  for (int part = 0; part < 4; ++part) {
    e.pass(kLimit / 5);
    e.time += kHour;
  }
  EXPECT(!e.asked());
  EXPECT(has(e.watch.under_way(e.time), "has not returned from req_wait for"));
  e.pass(kLimit / 5 + 10 * kSecond);
  EXPECT(has(e.job_end, "has not returned from req_wait for 60"));
  EXPECT(has(e.job_end, "HOROVOD_OPERATION_TIMEOUT_SECONDS"));
}

void an_operation_ends_the_job_at_its_limit() {
  Engine e;
  e.begin_operation();
  e.pass(kLimit - kSecond);
  EXPECT(!e.asked());
  e.pass(10 * kSecond);
  EXPECT(has(e.job_end, "has not completed an operation for 60"));
}

void idle_time_counts_for_no_call() {
  Engine e;
  EXPECT(e.watch.look(e.time) == INT64_MAX);
  e.time += kHour;
  e.begin_operation();
  {
    const CallScope call(Call::comm_req_free, kName);
    e.pass(kLimit / 2);
    EXPECT(!e.asked());
  }
  e.driver.end_operation();
  e.watch.look(e.time);
  EXPECT(e.watch.look(e.time += kSecond) == INT64_MAX);
}

void a_process_set_that_is_not_destroyed_ends_the_job() {
  Engine e;
  e.driver.note_driver();
  const CallScope call(Call::comm_destroy, kName);
  e.pass(kEnd - kSecond);
  EXPECT(!e.asked());
  e.pass(3 * kSecond);
  EXPECT(has(e.job_end, "the backend 'x' has not returned from destroy for 60"));
  EXPECT(e.left.empty());
  e.pass(4 * kSecond);
  EXPECT(e.left == e.job_end);
  EXPECT(e.process_end.empty());
}

void a_destruction_at_the_end_ends_the_process() {
  Engine e;
  e.ended = true;
  const CallScope call(Call::comm_destroy, kName);
  e.pass(2 * kEnd);
  EXPECT(!e.asked());  // the program goes on
  e.closing = true;
  e.pass(kSecond);
  EXPECT(has(e.process_end, "has not returned from destroy for 120"));
  EXPECT(e.job_end.empty());
}

void a_driver_that_is_stuck_after_the_end_ends_the_process_that_closes() {
  Engine e;
  e.ended = true;
  e.begin_operation();
  const CallScope call(Call::comm_req_free, kName);
  e.pass(2 * kEnd);
  EXPECT(!e.asked());
  e.closing = true;
  e.pass(kSecond);
  EXPECT(has(e.process_end, "has not returned from req_free for 120"));
}

void a_call_of_an_earlier_engine_is_not_watched() {
  const CallScope call(Call::comm_destroy, kName);
  Engine e;
  e.closing = true;
  e.watch.look(e.time);
  EXPECT(e.watch.look(e.time + 2 * kEnd) == INT64_MAX && !e.asked() && e.watch.inside().empty());
}

void a_nested_call_gives_the_slot_back_to_the_outer_one() {
  EXPECT(!CallScope::here());
  {
    const CallScope outer(Call::comm_create, kName);
    {
      const CallScope inner(Call::comm_abort, kName);
    }
    EXPECT(CallScope::slot().running() == Call::comm_create && CallScope::here());
  }
  EXPECT(!CallScope::here());
}

// Either the call is left for good, or it has returned: whenever it ends meanwhile.
void a_call_that_is_left_behind_does_not_return() {
  struct Shared {
    std::atomic<hvd::plugins::CallSlot*> slot{nullptr};
    std::atomic<uint64_t> call{0};
    std::atomic<bool> asked{false}, returned{false};
  };
  int left = 0, returned = 0;
  std::vector<std::pair<Shared*, bool>> all;  // never destroyed: threads stay in it
  for (int round = 0; round < 200; ++round) {
    auto* const shared = new Shared;
    std::thread thread([shared, round] {
      {
        const CallScope call(Call::comm_req_wait, kName);
        shared->slot = &CallScope::slot();
        shared->call = CallScope::slot().call.load();
        for (std::atomic<int> n = 0; n < round * 40;) ++n;
        while (round == 0 && !shared->asked) {  // is left behind for sure
        }
      }
      shared->returned = true;
    });
    while (shared->call == 0) {
    }
    for (std::atomic<int> n = 0; n < (round % 20) * 400;) ++n;
    while (round == 1 && !shared->returned) {  // has returned for sure
    }
    all.emplace_back(shared, shared->slot.load()->abandon(shared->call));
    shared->asked = true;
    ++(all.back().second ? left : returned);
    all.back().second ? thread.detach() : thread.join();
  }
  EXPECT(left > 0 && returned > 0);  // the first and the second one, at least
  for (const auto& [shared, was_left] : all) EXPECT(shared->returned == !was_left);
}

const named_checks::List kChecks = {
    CHECK(time_in_which_the_process_was_stopped_does_not_count),
    CHECK(an_operation_ends_the_job_at_its_limit),
    CHECK(idle_time_counts_for_no_call),
    CHECK(a_process_set_that_is_not_destroyed_ends_the_job),
    CHECK(a_destruction_at_the_end_ends_the_process),
    CHECK(a_driver_that_is_stuck_after_the_end_ends_the_process_that_closes),
    CHECK(a_call_of_an_earlier_engine_is_not_watched),
    CHECK(a_nested_call_gives_the_slot_back_to_the_outer_one),
    CHECK(a_call_that_is_left_behind_does_not_return),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
