// See schedule.h.
#include "engine/dataplane/schedule.h"

#include <algorithm>
#include <utility>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/plugins/backend.h"
#include "engine/recorder/observer.h"

namespace hvd::dataplane {

namespace {
// A collective exchanges many short messages with its peers. Reading the control links after each test would cost more
// than the exchange itself. This many tests take a few microseconds.
constexpr int kTestsPerRound = 128;
// While both strands wait for other ranks, the driver sleeps in one backend after the other, each time for this long.
constexpr int64_t kStrandSliceNs = 50'000;
}  // namespace

Schedule::Step& Schedule::add() {
  if (!inserting_) insert_ = count_;
  if (count_ == steps_.size()) steps_.push_back(std::make_unique<Step>());
  // Moves a spare step from the end to its place.
  if (insert_ != count_) {
    auto spare = std::move(steps_[count_]);
    steps_.erase(steps_.begin() + static_cast<ptrdiff_t>(count_));
    steps_.insert(steps_.begin() + static_cast<ptrdiff_t>(insert_), std::move(spare));
  }
  ++count_;
  Step& s = *steps_[insert_++];
  s.comm = nullptr;
  s.phase = nullptr;
  s.forks = false;
  s.group.clear();
  return s;
}

Schedule::Kind Schedule::Step::kind() const {
  if (forks) return Kind::Strands;
  if (comm) return group.empty() ? Kind::Collective : Kind::Group;
  return computation ? Kind::Computation : Kind::Wait;
}

// Returns true if the step is complete already.
bool Schedule::Step::start() {
  if (!comm) return test();
  return group.empty() ? comm->start(collective) : comm->start_group(group);
}

bool Schedule::Step::test() {
  if (comm) return comm->test();
  if (!forks) return done();
  // The first strand once more if the second has advanced, as it may have waited for that. The observer knows both as
  // one phase.
  for (;;) {
    const size_t before = strands[1]->at_;
    const bool first = strands[0]->advance(), second = strands[1]->advance();
    if (first && second) return true;
    if (first || strands[1]->at_ == before) return false;
  }
}

void Schedule::Step::wait_until(int64_t deadline_ns) {
  if (comm) {
    comm->wait(deadline_ns);
  } else if (!forks) {
    if (wait) wait(deadline_ns);
  } else if (strands[0]->sleeps() && strands[1]->sleeps()) {
    for (const auto& strand : strands) strand->wait(std::min(deadline_ns, base::now_ns() + kStrandSliceNs));
  } else {
    for (const auto& strand : strands)
      if (strand->sleeps()) strand->wait(deadline_ns);
  }
}

bool Schedule::Step::lingers() const {
  if (forks) return strands[0]->lingers() || strands[1]->lingers();
  return comm && comm->in_flight();
}

plugins::Collective& Schedule::collective(plugins::Communicator& comm) {
  Step& s = add();
  s.comm = &comm;
  s.collective.reset();
  return s.collective;
}

void Schedule::group(plugins::Communicator& comm, std::vector<plugins::Collective> members) {
  Step& s = add();
  s.comm = &comm;
  s.group = std::move(members);
}

void Schedule::poll(Done done, Wait wait) {
  Step& s = add();
  s.done = std::move(done);
  s.wait = std::move(wait);
}

std::array<Schedule*, 2> Schedule::strands(const char* phase) {
  Step& s = add();
  for (auto& strand : s.strands)
    if (!strand) strand = std::make_unique<Schedule>();
  s.forks = true;
  s.phase = phase;
  return {s.strands[0].get(), s.strands[1].get()};
}

void Schedule::compute(Computation computation, const char* phase) {
  Step& s = add();
  s.computation = std::move(computation);
  s.phase = phase;
}

char* Schedule::scratch(uint64_t bytes) {
  scratch_.push_back(calls::allocate(bytes));
  return static_cast<char*>(scratch_.back().get());
}

void Schedule::Step::tell(recorder::Observer* observer, bool begins, uint64_t batch) const {
  if (!observer) return;
  if (comm) {
    const int32_t coll = group.empty() ? collective.coll : group[0].coll;
    // As Horovod's timelines have it.
    observer->step(begins, comm->backend().tag(), coll == HVD_BROADCAST ? "bcast" : base::collective_name(coll), batch);
  } else if (phase) {
    observer->step(begins, "", phase, batch);
  }
}

bool Schedule::advance(recorder::Observer* observer, uint64_t batch) {
  while (at_ < count_) {
    Step& s = *steps_[at_];
    if (running_) {
      int tests = 0;
      try {
        while (!s.test())
          if (s.forks || ++tests == kTestsPerRound) return false;
      } catch (...) {
        running_ = false;
        throw;
      }
      running_ = false;
      s.tell(observer, false, batch);
    } else if (!s.computation) {
      s.tell(observer, true, batch);
      running_ = !s.start();
      if (running_) return false;
      s.tell(observer, false, batch);
    } else {
      s.tell(observer, true, batch);
      inserting_ = true;
      insert_ = at_ + 1;
      const Computation computation = std::move(s.computation);
      try {
        computation(*this);
      } catch (...) {
        inserting_ = false;
        throw;
      }
      inserting_ = false;
      s.tell(observer, false, batch);
    }
    ++at_;
  }
  return true;
}

void Schedule::wait(int64_t deadline_ns) {
  try {
    steps_[at_]->wait_until(deadline_ns);
  } catch (...) {
    running_ = false;
    throw;
  }
}

void Schedule::settle(int64_t deadline_ns) noexcept {
  const auto quietly = [](const auto& body) {
    try {
      body();
    } catch (const std::exception&) {
      // A failed step uses its buffers no longer. If memory has run out, lingers() says whether it does.
    }
  };
  if (at_ < count_) {
    Step& s = *steps_[at_];
    if (s.forks)
      for (const auto& strand : s.strands) strand->settle(deadline_ns);
    else if (s.comm ? s.comm->in_flight() : running_)
      quietly([&] { s.wait_until(deadline_ns); });
  }
  for (const Wait& wait : at_settle_) quietly([&] { wait(deadline_ns); });
  unsettled_ = lingers();
}

void Schedule::clear() {
  unsettled_ = lingers();
  for (size_t i = 0; i < count_; ++i) {
    Step& s = *steps_[i];
    s.computation = nullptr;
    s.done = nullptr;
    s.wait = nullptr;
    if (!s.forks) continue;
    for (const auto& strand : s.strands) {
      if (unsettled_) strand->lose_scratch();  // a collective of one strand may use memory of the other
      strand->clear();
    }
  }
  count_ = at_ = insert_ = 0;
  running_ = inserting_ = false;
  at_settle_.clear();
  if (std::exchange(unsettled_, false)) {
    // The backend may still write to this memory. It stays until the process ends, so that no later allocation gets it.
    if (const size_t n = scratch_.size() + kept_.size(); n > 0)
      base::log(base::Level::Warning, "a collective that was aborted still uses " + std::to_string(n) +
                                          " buffers of the engine; the engine keeps them until this process ends");
    for (auto& memory : scratch_) static_cast<void>(memory.release());
    new auto(std::move(kept_));
  }
  scratch_.clear();
  kept_.clear();
}

}  // namespace hvd::dataplane
