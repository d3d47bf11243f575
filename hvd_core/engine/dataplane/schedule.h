// A schedule: the steps that carry out one batch. A step is a collective on a communicator, a group of collectives, a
// wait, a computation between them, or strands: schedules that run side by side.
//
// A Lowering writes the steps. The Executor runs them in order, one at a time. Every member of a communicator must
// write the same collectives on it in the same order; each rank decides about its own computations. Step objects are
// reused, so that a schedule of one collective allocates nothing once it has run before. Used by the driver.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/calls/request.h"
#include "engine/plugins/communicator.h"

namespace hvd::recorder {
class Observer;
}

namespace hvd::dataplane {

class Schedule {
 public:
  using Computation = std::function<void(Schedule&)>;
  // Returns true when the awaited event has happened. Never sleeps.
  using Done = std::function<bool()>;
  // Sleeps until the awaited event has happened, or until the deadline.
  using Wait = std::function<void(int64_t deadline_ns)>;

  // Adds a collective and returns it with the defaults of plugins::Collective. The caller fills it in before it adds
  // another step. The communicator must outlive the run.
  plugins::Collective& collective(plugins::Communicator& comm);
  // Adds several collectives that the communicator takes as one group; see plugins::Communicator::start_group.
  void group(plugins::Communicator& comm, std::vector<plugins::Collective> members);
  // Adds a wait for an event that is no collective (work on a device's stream, for example). settle() waits for it as
  // it does for a collective.
  void poll(Done done, Wait wait);
  // Adds two schedules that run side by side, for the caller to fill in before it adds another step. Each runs its own
  // steps in order; the step is complete when both are. They use different communicators, and the caller marks their
  // collectives as overlapped. Scratch memory of either may be used by both. `phase`: as below.
  std::array<Schedule*, 2> strands(const char* phase = nullptr);
  // In a strand: adds a wait for an event that the other strand brings about.
  void await_other_strand(Done done) { poll(std::move(done), nullptr); }
  // Adds a computation. All steps before it are complete when it runs. It may add steps itself (sizes that only an
  // exchange tells need that): they run right after it, before the steps that were added earlier. `phase`: its name in
  // a timeline, if it is worth showing; lives longer than the schedule.
  void compute(Computation computation, const char* phase = nullptr);
  // Makes settle() wait for more than the running step: for work that a computation has started on a device.
  void at_settle(Wait wait) { at_settle_.push_back(std::move(wait)); }
  // Uninitialised memory, aligned to 64 bytes, that lives until clear(). Never null, not even for 0 bytes. Throws
  // std::bad_alloc.
  char* scratch(uint64_t bytes);
  hvd_buf scratch_buf(uint64_t bytes) { return {scratch(bytes), 0, bytes}; }
  // Keeps an object until clear(). Like scratch memory, the object is never freed if it may still be in use then.
  void keep(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }
  template <typename T>
  T* scratch_array(uint64_t count) {
    return reinterpret_cast<T*>(scratch(count * sizeof(T)));
  }

  // Runs as many steps as it can and returns true when all are done. Never sleeps; it returns false after a few
  // microseconds of testing one collective. Throws the exception of a failed step (plugins::BackendError, ...).
  // The observer is notified of the steps of batch `batch`.
  bool advance(recorder::Observer* observer = nullptr, uint64_t batch = 0);
  // Sleeps in the backend until the running step is complete, or until the deadline. Only while in_flight().
  void wait(int64_t deadline_ns);
  bool in_flight() const { return running_; }

  // After an abort: waits until the running step and the events of at_settle() use their buffers no longer, or until
  // the deadline.
  void settle(int64_t deadline_ns) noexcept;
  // Forgets all steps and frees the scratch memory. While it lingers(), the memory is kept until the process ends.
  void clear();
  // Whether a collective that was started, here or on a device, may still use its buffers.
  bool lingers() const { return unsettled_ || (at_ < count_ && steps_[at_]->lingers()); }
  // The scratch memory may still be in use: the next clear() keeps it until the process ends.
  void lose_scratch() noexcept { unsettled_ = true; }

  // The steps so far, for tests.
  enum class Kind { Collective, Group, Wait, Computation, Strands };
  size_t size() const { return count_; }
  Kind kind(size_t i) const { return steps_[i]->kind(); }
  // Of a Collective or Group: its communicator, and the collective or the members.
  const plugins::Communicator& communicator_at(size_t i) const { return *steps_[i]->comm; }
  const plugins::Collective& collective_at(size_t i) const { return steps_[i]->collective; }
  const std::vector<plugins::Collective>& group_at(size_t i) const { return steps_[i]->group; }
  const Schedule& strand_at(size_t i, size_t strand) const { return *steps_[i]->strands[strand]; }

 private:
  struct Step {
    plugins::Communicator* comm = nullptr;  // null: a computation or a wait
    plugins::Collective collective;
    std::vector<plugins::Collective> group;  // replaces `collective` unless empty
    Computation computation;
    const char* phase = nullptr;  // of a computation or strands
    Done done;                    // of a wait
    Wait wait;
    bool forks = false;  // into the strands, which stay for the next use of this object
    std::array<std::unique_ptr<Schedule>, 2> strands;
    Kind kind() const;
    bool start();
    void tell(recorder::Observer* observer, bool begins, uint64_t batch) const;
    bool test();
    void wait_until(int64_t deadline_ns);
    bool lingers() const;
    bool sleeps() const { return comm || wait; }
  };
  Step& add();
  bool sleeps() const { return running_ && steps_[at_]->sleeps(); }

  std::vector<std::unique_ptr<Step>> steps_;  // the first count_ are the schedule, the others are spare objects
  size_t count_ = 0, at_ = 0;
  size_t insert_ = 0;  // where the next step goes; the end, except while a computation runs
  bool running_ = false, inserting_ = false, unsettled_ = false;
  std::vector<Wait> at_settle_;
  std::vector<std::unique_ptr<void, calls::FreeDeleter>> scratch_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace hvd::dataplane
