// Carries out the log's orders, one at a time and in log order on all process sets: batches of requests, and the making
// and ending of process sets' communicators.
//
// One order at a time: on host memory a later one cannot start before the earlier one is through. An order on a device
// is through when the device's stream has all of it; what is still to happen there is outstanding, and its requests are
// enqueued, until the stream has come to its end. Nothing here waits, except wait() and settle(). Used by the thread
// that drives the engine; abort() from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/data/batch.h"
#include "engine/data/creation.h"
#include "engine/data/program.h"
#include "engine/data/set_comms.h"
#include "engine/queue/request.h"

namespace hvd::data {

class Executor {
 public:
  struct Events {
    virtual ~Events() = default;
    virtual void completed(const queue::RequestRef& request) = 0;
    // Its work is in a device's stream up to `end`; completed() follows.
    virtual void enqueued(const queue::RequestRef& request, const plugin::MarkRef& end) = 0;
    // It cannot be done, which all ranks find alike: it fails, and the job goes on.
    virtual void refused(const queue::RequestRef& request, const std::string& why) = 0;
    // The running order failed (an HVD_E_* code): the other ranks may not know, the whole job must stop.
    virtual void broken(int32_t code, const std::string& why) = 0;
  };

  // `job`: what the store's keys begin with. `create_ns`: how long the members of a set may take to come together.
  Executor(int32_t rank, std::vector<int32_t> hosts, std::string job, int64_t create_ns, Backends backends,
           std::shared_ptr<plugin::Store> store, Events& events);
  ~Executor();

  // Orders, to be carried out one after the other. `request` may be null; it completes when the order is done.
  void execute(control::SetId set, std::vector<Work> batch);
  void create(control::SetId set, const std::vector<int32_t>& members, queue::RequestRef request);
  void remove(control::SetId set, queue::RequestRef request);

  // Goes as far as it can without waiting. True when anything moved.
  bool progress();
  // Asleep until the running order is through, or until the deadline. Only while in_flight().
  void wait(int64_t deadline_ns);

  bool idle() const { return queue_.empty(); }
  bool in_flight() const { return !queue_.empty() && (program_->in_flight() || creation_); }
  // Work on devices that nobody waits for here: progress() looks after it when next_look_ns() has come (INT64_MAX:
  // there is none), with pauses that grow while nothing happens.
  bool outstanding() const { return !outstanding_.empty(); }
  int64_t next_look_ns() const { return outstanding_.empty() ? INT64_MAX : next_look_ns_; }
  // Only that, and at once.
  void look();
  // Device work that is not done after `warn_ns` is told once, after `abort_ns` it breaks the job; 0: never.
  void limit_outstanding(int64_t warn_ns, int64_t abort_ns) {
    outstanding_warn_ns_ = warn_ns;
    outstanding_abort_ns_ = abort_ns;
  }

  void abort() noexcept;
  // Whether a set is being made, which abort() does not end: a backend may wait for its members until its deadline.
  bool creating() const { return creation_ != nullptr; }
  // After abort: until the running collective and the devices have let go of their buffers, or the deadline; what
  // might still be used then is kept until the process ends.
  void settle(int64_t deadline_ns) noexcept;
  // Forgets all orders (after abort). The requests are the engine's to fail; those whose tensors may still be used, as
  // far as that is known by now, are marked so.
  void clear();

 private:
  struct Order {
    enum Type { Execute, Create, Remove } type;
    control::SetId set = 0;
    std::vector<Work> work;
    std::vector<int32_t> members;
    queue::RequestRef request;
  };

  // What a device has been given and may not have done yet.
  struct Outstanding {
    std::unique_ptr<Program> program;  // with the memory that is used
    std::vector<Work> work;
    std::shared_ptr<SetComms> set;
    SetDevice* device;
    plugin::MarkRef end;
    int64_t since = 0;
    bool told = false;  // that it takes too long
  };

  bool carry_out(Order& order);
  bool carry_out_create(Order& order);
  void finish(const std::string* refusal);
  void start_creation(std::function<std::shared_ptr<void>()> make);
  // executor_devices.cc
  bool begin_on_device(Order& order, const std::shared_ptr<SetComms>& set, const std::string& type);
  void hand_over(const std::string* refusal);
  bool look_after_devices();
  void check_age(Outstanding& o, int64_t now);
  void watch_device();
  bool busy(control::SetId set) const;
  void put_away(std::vector<Work> front);
  void free_put_away() noexcept;
  static void mark_lingering(const Program& program, const std::vector<Work>& work);

  const int32_t rank_;
  const std::vector<int32_t> hosts_;
  const std::string job_;
  const int64_t create_ns_;
  const Backends backends_;
  const std::shared_ptr<plugin::Store> store_;
  Events& events_;
  const observe::CoreMask cores_ = observe::own_cores();  // of the thread that makes the engine: the process's

  std::mutex sets_mutex_;  // abort() looks at sets_ from other threads
  std::map<control::SetId, std::shared_ptr<SetComms>> sets_;
  bool aborted_ = false;

  std::deque<Order> queue_;
  // The order at the front of the queue.
  bool begun_ = false;
  Batch batch_;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  std::unique_ptr<Creation> creation_, given_up_;
  std::shared_ptr<SetComms> device_set_;  // of a running order on a device
  SetDevice* device_ = nullptr;

  std::vector<Outstanding> outstanding_;  // in the order of each device's stream
  int64_t next_look_ns_ = 0, look_pause_ns_ = 0, next_watch_ns_ = 0;
  int64_t outstanding_warn_ns_ = 0, outstanding_abort_ns_ = 0;
  std::vector<std::unique_ptr<Program>> spare_;
  // Work on devices that has failed or was aborted, until it is known whether its memory is still used.
  struct PutAway {
    std::unique_ptr<Program> program;
    std::vector<Work> work;
  };
  std::vector<PutAway> put_away_;
  bool settled_ = false, drained_ = false;
  uint64_t seq_ = 0;
};

}  // namespace hvd::data
