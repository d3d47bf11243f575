// Carries out the entries of the log, one at a time and in log order over all process sets: batches of requests, and
// the creation and removal of process sets' communicators.
//
// On host memory, an entry cannot start before the earlier one is complete. An entry on a device is complete for the
// executor when all its work is enqueued on the device's stream. Until the stream has reached the end of that work, the
// work is outstanding and its requests are enqueued. Nothing here waits, except wait() and settle(). Used by the
// driver; any thread may call abort().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/calls/request.h"
#include "engine/dataplane/abort_run.h"
#include "engine/dataplane/batch.h"
#include "engine/dataplane/creation.h"
#include "engine/dataplane/schedule.h"
#include "engine/dataplane/set_comms.h"

namespace hvd::dataplane {

class Executor {
 public:
  struct Events {
    virtual ~Events() = default;
    virtual void completed(const calls::RequestRef& request) = 0;
    virtual void completed(const std::vector<agreement::BatchItem>& items) = 0;  // those that have requests
    // The request's work is in a device's stream up to `end`; completed() follows.
    virtual void enqueued(const calls::RequestRef& request, const plugins::MarkRef& end) = 0;
    // The request cannot be carried out, on all ranks alike: it fails, and the job goes on.
    virtual void refused(const calls::RequestRef& request, const std::string& why) = 0;
    // The running entry failed (an HVD_E_* code). The other ranks may not know, so the whole job must stop.
    virtual void broken(int32_t code, const std::string& why) = 0;
  };

  // `job`: the prefix of the store's keys. `create_ns`: how long the members of a set may take to find each other.
  Executor(int32_t rank, std::vector<int32_t> hosts, std::string job, int64_t create_ns, Backends backends,
           std::shared_ptr<plugins::Store> store, Events& events);
  ~Executor();

  // The observer is notified of batches, which it knows by their numbers: the n-th call of execute() appends batch n.
  void observe(recorder::Observer& observer) { observer_ = &observer; }

  // Append an entry to the queue. `request` may be null; it completes with the task.
  void execute(agreement::SetId set, std::vector<agreement::BatchItem> batch);
  // `by_all`: all ranks of the job append this entry, members or not, so that the set can be split off the global one.
  // `own`: the set's own backends; null: the job's.
  void create(agreement::SetId set, const std::vector<int32_t>& members, calls::RequestRef request, bool by_all,
              std::shared_ptr<const Backends> own = nullptr);
  void remove(agreement::SetId set, calls::RequestRef request);

  // Carries out entries as far as it can without waiting. Returns true if anything advanced.
  bool progress();
  // Sleeps until the running entry is complete, or until the deadline. Only while in_flight().
  void wait(int64_t deadline_ns);

  bool idle() const { return queue_.empty(); }
  bool in_flight() const { return !halted_ && !queue_.empty() && (schedule_->in_flight() || creation_); }
  // Whether devices have outstanding work. progress() checks it when the time next_look_ns() has come (INT64_MAX: there
  // is no outstanding work), with pauses that grow while nothing completes.
  bool outstanding() const { return !outstanding_.empty(); }
  int64_t next_look_ns() const { return outstanding_.empty() ? INT64_MAX : next_look_ns_; }
  // Checks the outstanding work at once.
  void look();
  // Device work that is not complete after `warn_ns` is logged once; after `abort_ns` it ends the job. 0: never.
  void limit_outstanding(int64_t warn_ns, int64_t abort_ns) {
    outstanding_warn_ns_ = warn_ns;
    outstanding_abort_ns_ = abort_ns;
  }

  // Returns within a few seconds, also if a backend's abort hangs (abort_run.h).
  void abort() noexcept;
  // What abort() had to leave behind: see AbortRun::hanging().
  std::string hanging_abort() const { return abort_run_.hanging(); }
  // Whether communicators are being created. abort() does not end that: a backend may wait for the members until its
  // deadline.
  bool creating() const { return creation_ != nullptr; }
  // After an abort: waits until the running collective and the devices use their buffers no longer, or until the
  // deadline. Memory that may still be in use then is kept until the process ends.
  void settle(int64_t deadline_ns) noexcept;
  // After a failure: carries out nothing more. A collective that is in flight beside the failed one keeps its buffers
  // until abort(), settle() and clear(); without one, this is clear().
  void halt();
  bool halted() const { return halted_; }
  // Forgets all entries (after an abort). The engine fails the requests. A request whose tensors are known to be in use
  // still is marked as lingering.
  void clear();

 private:
  struct Task {
    enum Type { Execute, Create, Remove } type;
    agreement::SetId set = 0;
    std::vector<agreement::BatchItem> work;
    std::vector<int32_t> members;
    calls::RequestRef request;
    bool by_all = false;
    std::shared_ptr<const Backends> own;
  };

  // Work that is enqueued on a device and not known to be complete.
  struct Outstanding {
    std::unique_ptr<Schedule> schedule;  // owns the memory that the work uses
    std::vector<agreement::BatchItem> work;
    std::shared_ptr<SetComms> set;
    SetDevice* device;
    plugins::MarkRef end;
    uint64_t batch = 0;  // its number
    int64_t since = 0;
    bool warned = false;  // about its age
  };

  recorder::Observer* observed() const;  // null while it is off
  bool carry_out(Task& task);
  bool carry_out_create(Task& task);
  // Windows, and what all batches have in common.
  void write_window(Task& task, const std::shared_ptr<SetComms>& set);
  void note_batch(const Task& task, const Layout& layout);
  void finish(const std::string* refusal);
  // The set that a new one is split off; null if it is made without one.
  std::shared_ptr<SetComms> parent_of(const Task& task, const Layout& layout) const;
  const Backends& backends_of(agreement::SetId set) const;
  void start_creation(std::function<std::shared_ptr<void>()> make);
  // Batches on a device.
  bool begin_on_device(Task& task, const std::shared_ptr<SetComms>& set, const std::string& type);
  void finish_on_device(const std::string* refusal);
  bool check_outstanding();
  void check_age(Outstanding& o, int64_t now);
  void check_device();
  bool busy(agreement::SetId set) const;
  void set_aside(std::vector<agreement::BatchItem> front);
  void free_set_aside() noexcept;
  static void mark_lingering(const Schedule& schedule, const std::vector<agreement::BatchItem>& work);

  const int32_t rank_;
  const std::vector<int32_t> hosts_;
  const std::string job_;
  const int64_t create_ns_;
  const Backends backends_;
  const std::shared_ptr<plugins::Store> store_;
  Events& events_;
  recorder::Observer* observer_ = nullptr;
  const base::CoreMask cores_ = base::own_cores();  // the process's, read on the thread that creates the engine

  std::mutex sets_mutex_;  // abort() reads sets_ from other threads
  std::map<agreement::SetId, std::shared_ptr<SetComms>> sets_;
  std::map<agreement::SetId, std::shared_ptr<const Backends>> own_backends_;
  bool aborted_ = false;
  AbortRun abort_run_;

  std::deque<Task> queue_;
  // The state of the entry at the front of the queue.
  bool begun_ = false, halted_ = false;
  BatchWriter batch_writer_;
  std::unique_ptr<Schedule> schedule_ = std::make_unique<Schedule>();
  std::unique_ptr<Creation> creation_, cancelled_;
  std::shared_ptr<SetComms> device_set_;  // of a running entry on a device
  SetDevice* device_ = nullptr;

  std::vector<Outstanding> outstanding_;  // in the order of each device's stream
  int64_t next_look_ns_ = 0, look_pause_ns_ = 0, next_watch_ns_ = 0;
  int64_t outstanding_warn_ns_ = 0, outstanding_abort_ns_ = 0;
  std::vector<std::unique_ptr<Schedule>> spare_;
  // Work on devices that has failed or was aborted, until it is known whether the device still uses its memory.
  struct SetAside {
    std::unique_ptr<Schedule> schedule;
    std::vector<agreement::BatchItem> work;
  };
  std::vector<SetAside> set_aside_;
  bool settled_ = false, drained_ = false;
  uint64_t seq_ = 0;
  std::optional<agreement::SetId> noted_set_;
};

}  // namespace hvd::dataplane
