// See program.h.
#include "engine/data/program.h"

#include <utility>

#include "engine/observe/log.h"

namespace hvd::data {

namespace {
// A collective takes many short turns with its peers; reading the control links between any two of them would cost more
// than the turns themselves. A few microseconds' worth.
constexpr int kTestsPerRound = 128;
}  // namespace

Program::Step& Program::add() {
  if (!inserting_) insert_ = count_;
  if (count_ == steps_.size()) steps_.push_back(std::make_unique<Step>());
  // A spare step moves from behind the program to its place.
  if (insert_ != count_) {
    auto spare = std::move(steps_[count_]);
    steps_.erase(steps_.begin() + static_cast<ptrdiff_t>(count_));
    steps_.insert(steps_.begin() + static_cast<ptrdiff_t>(insert_), std::move(spare));
  }
  ++count_;
  Step& s = *steps_[insert_++];
  s.comm = nullptr;
  s.group.clear();
  return s;
}

// True when it is through already.
bool Program::Step::start() {
  if (!comm) return done();
  return group.empty() ? comm->start(collective) : comm->start_group(group);
}

plugin::Collective& Program::collective(plugin::Communicator& comm) {
  Step& s = add();
  s.comm = &comm;
  auto& c = s.collective;
  c.reset();
  c.deadline_ns = HVD_NO_DEADLINE;
  return c;
}

void Program::group(plugin::Communicator& comm, std::vector<plugin::Collective> members) {
  Step& s = add();
  s.comm = &comm;
  s.group = std::move(members);
}

void Program::poll(Done done, Wait wait) {
  Step& s = add();
  s.done = std::move(done);
  s.wait = std::move(wait);
}

void Program::compute(Task task) { add().task = std::move(task); }

char* Program::scratch(uint64_t bytes) {
  scratch_.push_back(queue::allocate(bytes));
  return static_cast<char*>(scratch_.back().get());
}

bool Program::advance() {
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
    } else if (!s.task) {
      running_ = !s.start();
      if (running_) return false;
    } else {
      inserting_ = true;
      insert_ = at_ + 1;
      Task task = std::move(s.task);
      try {
        task(*this);
      } catch (...) {
        inserting_ = false;
        throw;
      }
      inserting_ = false;
    }
    ++at_;
  }
  return true;
}

void Program::wait(int64_t deadline_ns) {
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

void Program::settle(int64_t deadline_ns) noexcept {
  const auto quietly = [](const auto& body) {
    try {
      body();
    } catch (const plugin::BackendError&) {
      // It has failed, which is what we wait for.
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

void Program::clear() {
  unsettled_ = lingers();
  for (size_t i = 0; i < count_; ++i) {
    steps_[i]->task = nullptr;
    steps_[i]->done = nullptr;
    steps_[i]->wait = nullptr;
  }
  count_ = at_ = insert_ = 0;
  running_ = inserting_ = false;
  at_settle_.clear();
  if (std::exchange(unsettled_, false)) {
    // Who still writes here must not hit what somebody else allocates next: it stays until the process ends.
    if (const size_t n = scratch_.size() + kept_.size(); n > 0)
      observe::log(observe::Level::Warning, "a collective that was aborted still uses " + std::to_string(n) +
                                                " buffers of the engine; they are kept until this process ends");
    for (auto& memory : scratch_) static_cast<void>(memory.release());
    if (!kept_.empty()) static_cast<void>(new std::vector<std::shared_ptr<void>>(std::move(kept_)));
  }
  scratch_.clear();
  kept_.clear();
}

}  // namespace hvd::data
