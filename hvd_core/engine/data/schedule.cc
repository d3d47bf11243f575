// See schedule.h.
#include "engine/data/schedule.h"

#include <utility>

#include "engine/observe/log.h"
#include "engine/observe/observer.h"
#include "engine/plugin/backend.h"
#include "engine/types/collectives.h"

namespace hvd::data {

namespace {
// A collective exchanges many short messages with its peers. Reading the control links after each test would cost more
// than the exchange itself. This many tests take a few microseconds.
constexpr int kTestsPerRound = 128;
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
  s.group.clear();
  return s;
}

Schedule::Kind Schedule::Step::kind() const {
  if (comm) return group.empty() ? Kind::Collective : Kind::Group;
  return computation ? Kind::Computation : Kind::Wait;
}

// Returns true if the step is complete already.
bool Schedule::Step::start() {
  if (!comm) return done();
  return group.empty() ? comm->start(collective) : comm->start_group(group);
}

plugin::Collective& Schedule::collective(plugin::Communicator& comm) {
  Step& s = add();
  s.comm = &comm;
  auto& c = s.collective;
  c.reset();
  c.deadline_ns = HVD_NO_DEADLINE;
  return c;
}

void Schedule::group(plugin::Communicator& comm, std::vector<plugin::Collective> members) {
  Step& s = add();
  s.comm = &comm;
  s.group = std::move(members);
}

void Schedule::poll(Done done, Wait wait) {
  Step& s = add();
  s.done = std::move(done);
  s.wait = std::move(wait);
}

void Schedule::compute(Computation computation, const char* phase) {
  Step& s = add();
  s.computation = std::move(computation);
  s.phase = phase;
}

char* Schedule::scratch(uint64_t bytes) {
  scratch_.push_back(queue::allocate(bytes));
  return static_cast<char*>(scratch_.back().get());
}

void Schedule::Step::tell(observe::Observer* observer, bool begins, uint64_t batch) const {
  if (!observer) return;
  if (comm) {
    const int32_t coll = group.empty() ? collective.coll : group[0].coll;
    // As Horovod's timelines have it.
    observer->step(begins, comm->backend().tag(), coll == HVD_BROADCAST ? "bcast" : types::collective_name(coll),
                   batch);
  } else if (phase) {
    observer->step(begins, "", phase, batch);
  }
}

bool Schedule::advance(observe::Observer* observer, uint64_t batch) {
  while (at_ < count_) {
    Step& s = *steps_[at_];
    if (running_) {
      int tests = 0;
      try {
        while (!s.test())
          if (++tests == kTestsPerRound) return false;
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
  Step& s = *steps_[at_];
  try {
    if (s.comm)
      s.comm->wait(deadline_ns);
    else
      s.wait(deadline_ns);
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
    if (s.comm && s.comm->in_flight())
      quietly([&] { s.comm->wait(deadline_ns); });
    else if (!s.comm && running_)
      quietly([&] { s.wait(deadline_ns); });
  }
  for (const Wait& wait : at_settle_) quietly([&] { wait(deadline_ns); });
  unsettled_ = lingers();
}

void Schedule::clear() {
  unsettled_ = lingers();
  for (size_t i = 0; i < count_; ++i) {
    steps_[i]->computation = nullptr;
    steps_[i]->done = nullptr;
    steps_[i]->wait = nullptr;
  }
  count_ = at_ = insert_ = 0;
  running_ = inserting_ = false;
  at_settle_.clear();
  if (std::exchange(unsettled_, false)) {
    // The backend may still write to this memory. It stays until the process ends, so that no later allocation gets it.
    if (const size_t n = scratch_.size() + (kept_ ? kept_->size() : 0); n > 0)
      observe::log_if_room(observe::Level::Warning, [n] {
        return "a collective that was aborted still uses " + std::to_string(n) +
               " buffers of the engine; the engine keeps them until this process ends";
      });
    for (auto& memory : scratch_) static_cast<void>(memory.release());
    static_cast<void>(kept_.release());
  }
  scratch_.clear();
  if (kept_) kept_->clear();
}

}  // namespace hvd::data
