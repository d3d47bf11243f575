// The states of an engine, and the transitions between them.
//
//   lifecycle_test          prints the names of the checks
//   lifecycle_test NAME     runs one; exits with 1 and a line for each failed expectation
#include "engine/core/lifecycle.h"

#include <algorithm>
#include <string>
#include <vector>

#include "named_checks.h"

namespace {

using hvd::Lifecycle;
using State = Lifecycle::State;

// Follows the path on a new object, through end() where the job ends.
void follow(Lifecycle& lifecycle, const std::vector<State>& path) {
  for (const State s : path) {
    if (s == State::Stopped || s == State::Aborted || s == State::LeftBehind)
      lifecycle.end(s, Lifecycle::name_of(s));
    else
      lifecycle.advance(s);
  }
}

void a_job_ends_once() {
  const std::vector<std::vector<State>> ends = {
      {State::Closing, State::Stopped}, {State::Aborted}, {State::Closing, State::Aborted}, {State::LeftBehind}};
  for (const auto& path : ends) {
    Lifecycle lifecycle;
    EXPECT(!lifecycle.over());
    follow(lifecycle, path);
    const State last = path.back();
    EXPECT(lifecycle.over() && lifecycle.state() == last);
    EXPECT(lifecycle.aborted() == (last != State::Stopped));
    lifecycle.end(State::Aborted, "a later failure");
    EXPECT(lifecycle.state() == last && lifecycle.message() == Lifecycle::name_of(last));
  }
}

void closing_an_engine_keeps_how_its_job_ended() {
  for (const State how : {State::Stopped, State::Aborted}) {
    Lifecycle lifecycle;
    follow(lifecycle, {State::Closing, how, State::Closed});
    EXPECT(lifecycle.state() == State::Closed && lifecycle.over());
    EXPECT(lifecycle.aborted() == (how == State::Aborted));
    EXPECT(lifecycle.message() == Lifecycle::name_of(how));
  }
}

void no_state_leads_back() {
  constexpr State kAll[] = {State::Running,    State::Closing, State::Stopped, State::Aborted,
                            State::LeftBehind, State::Closed,  State::Forked};
  for (const State from : kAll)
    for (const State to : kAll) {
      if (to < from) EXPECT(!Lifecycle::legal(from, to));
      if (to == State::Forked) EXPECT(Lifecycle::legal(from, to));
    }
  // An engine that runs, or that a thread still uses, is not closed.
  for (const State from : {State::Running, State::Closing, State::LeftBehind})
    EXPECT(!Lifecycle::legal(from, State::Closed));
  // The ranks must have agreed before a job can end in good order.
  EXPECT(!Lifecycle::legal(State::Running, State::Stopped));
}

const named_checks::List kChecks = {
    CHECK(a_job_ends_once),
    CHECK(closing_an_engine_keeps_how_its_job_ended),
    CHECK(no_state_leads_back),
};

}  // namespace

int main(int argc, char** argv) { return named_checks::run(kChecks, argc, argv); }
