// A composed collective as a list of steps: collectives on communicators, and computations between them.
//
// A Transport writes the steps, the Executor runs them in order, one at a time. Every member of a communicator must
// write the same collectives on it in the same order; computations are each rank's own affair. Step objects are reused,
// so that a program of one step allocates nothing once it has run before. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/plugin/communicator.h"
#include "engine/queue/request.h"

namespace hvd::data {

class Program {
 public:
  using Task = std::function<void(Program&)>;
  // True when what it looks for has happened. Never sleeps.
  using Done = std::function<bool()>;
  // Asleep until then, or until the deadline.
  using Wait = std::function<void(int64_t deadline_ns)>;

  // Adds a collective and returns it, empty but for the defaults of plugin::Collective, to be filled in by the caller
  // before anything else is added. The communicator must outlive the program's run.
  plugin::Collective& collective(plugin::Communicator& comm);
  // Adds several collectives that the communicator takes as one group; see plugin::Communicator::start_group.
  void group(plugin::Communicator& comm, std::vector<plugin::Collective> members);
  // Adds a wait for something that is no collective (work on a device's stream, say). After an abort it is waited for
  // like a collective.
  void poll(Done done, Wait wait);
  // Adds a computation. When it runs, everything before it is complete. It may add steps of its own (sizes that only
  // an exchange tells): they run right after it, before what was added earlier.
  void compute(Task task);
  // Has settle() wait for more than the running step: work that a computation has started beside the steps.
  void at_settle(Wait wait) { at_settle_.push_back(std::move(wait)); }
  // Uninitialised memory, aligned to 64 bytes, that lives until clear(). Never null, also for 0 bytes. Throws
  // std::bad_alloc.
  char* scratch(uint64_t bytes);
  hvd_buf scratch_buf(uint64_t bytes) { return {scratch(bytes), 0, bytes}; }
  // Something that lives until clear(), and like scratch memory stays if it might still be used then.
  void keep(std::shared_ptr<void> what) { kept_.push_back(std::move(what)); }
  template <typename T>
  T* scratch_array(uint64_t count) {
    return reinterpret_cast<T*>(scratch(count * sizeof(T)));
  }

  // Runs as far as it can; true when all steps are done. Never sleeps; gives up for now after a few microseconds of
  // testing. Throws what a step throws (plugin::BackendError, ...).
  bool advance();
  // Asleep in the backend until the running step is through, or until the deadline. Only while in_flight().
  void wait(int64_t deadline_ns);
  bool in_flight() const { return running_; }

  // After an abort: waits until the running step, and what at_settle() names, has let go of its buffers, or the
  // deadline.
  void settle(int64_t deadline_ns) noexcept;
  // Forgets all steps and frees the scratch memory; while it lingers(), the memory is kept until the process ends.
  void clear();
  // Whether a collective that was started, here or on a device, may still use its buffers.
  bool lingers() const { return unsettled_ || (at_ < count_ && steps_[at_]->comm && steps_[at_]->comm->in_flight()); }
  // Somebody may go on using the scratch memory: the next clear() keeps it until the process ends.
  void lose_scratch() noexcept { unsettled_ = true; }

 private:
  struct Step {
    plugin::Communicator* comm = nullptr;  // null: a computation or a wait
    plugin::Collective collective;
    std::vector<plugin::Collective> group;  // in place of `collective`, unless empty
    Task task;
    Done done;  // of a wait
    Wait wait;
    bool start();
    bool test() { return comm ? comm->test() : done(); }
  };
  Step& add();

  std::vector<std::unique_ptr<Step>> steps_;  // the first count_ are the program, the others are kept for reuse
  size_t count_ = 0, at_ = 0;
  size_t insert_ = 0;  // where the next step goes; the end, except while a computation runs
  bool running_ = false, inserting_ = false, unsettled_ = false;
  std::vector<Wait> at_settle_;
  std::vector<std::unique_ptr<void, queue::FreeDeleter>> scratch_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace hvd::data
