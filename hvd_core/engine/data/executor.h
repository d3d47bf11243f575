// Carries out the log's orders, one at a time and in log order on all process sets: batches of requests, and the making
// and ending of process sets' communicators.
//
// One order at a time: on host memory a later one cannot start before the earlier one is through. Nothing here waits,
// except wait() and settle(). Used by the thread that drives the engine; abort() from any thread.
#pragma once

#include <cstdint>
#include <deque>
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
    // It cannot be done, which all ranks find alike: it fails, and the job goes on.
    virtual void refused(const queue::RequestRef& request, const std::string& why) = 0;
    // The running order failed (an HVD_E_* code): the other ranks may not know, the whole job must stop.
    virtual void broken(int32_t code, const std::string& why) = 0;
  };

  // `job`: what the store's keys begin with. `create_ns`: how long the members of a set may take to come together.
  Executor(int32_t rank, std::vector<int32_t> hosts, std::string job, int64_t create_ns, Backends backends,
           std::shared_ptr<plugin::Store> store, Events& events);

  // Orders, to be carried out one after the other. `request` may be null; it completes when the order is done.
  void execute(control::SetId set, std::vector<Work> batch);
  void create(control::SetId set, const std::vector<int32_t>& members, queue::RequestRef request);
  void remove(control::SetId set, queue::RequestRef request);

  // Goes as far as it can without waiting. True when anything moved.
  bool progress();
  // Asleep until the running order is through, or until the deadline. Only while in_flight().
  void wait(int64_t deadline_ns);

  bool idle() const { return queue_.empty(); }
  bool in_flight() const { return !queue_.empty() && (program_.in_flight() || creation_); }

  void abort() noexcept;
  // Whether a set is being made, which abort() does not end: a backend may wait for its members until its deadline.
  bool creating() const { return creation_ != nullptr; }
  // After abort: until the running collective has let go of its buffers, or the deadline.
  void settle(int64_t deadline_ns) noexcept { program_.settle(deadline_ns); }
  // Forgets all orders (after abort). The requests are the engine's to fail.
  void clear();

 private:
  struct Order {
    enum Type { Execute, Create, Remove } type;
    control::SetId set = 0;
    std::vector<Work> work;
    std::vector<int32_t> members;
    queue::RequestRef request;
  };

  bool carry_out(Order& order);
  bool carry_out_create(Order& order);
  void finish(const std::string* refusal);

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
  Program program_;
  std::unique_ptr<Creation> creation_, given_up_;
  uint64_t seq_ = 0;
};

}  // namespace hvd::data
