// Executes what the log says, in log order: builds each batch's collectives, drives them through the backend's
// communicator, and completes the requests.
//
// One batch at a time: on host memory a later one cannot start before the earlier one is through. Nothing here waits,
// except create_comm and wait(). Used by the thread that drives the engine; abort() from any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/plugin/backend.h"
#include "engine/queue/request.h"

namespace hvd::data {

struct Work {
  control::Item item;
  queue::RequestRef request;  // null on a rank that has joined
};

class Executor {
 public:
  struct Events {
    virtual ~Events() = default;
    virtual void completed(const queue::RequestRef& request) = 0;
    // The running operation failed (an HVD_E_* code): the other ranks may not know, the whole job must stop.
    virtual void broken(int32_t code, const std::string& why) = 0;
  };

  Executor(int32_t rank, std::vector<int32_t> hosts, std::shared_ptr<plugin::Backend> backend, plugin::Store& store,
           Events& events);
  // Communicators go first: a running collective may use everything else here until then.
  ~Executor() { comms_.clear(); }

  // Collective over the members of the set. Throws plugin::BackendError.
  void create_comm(control::SetId set, const std::vector<int32_t>& members, const std::string& key,
                   int64_t deadline_ns);

  void enqueue(control::SetId set, std::vector<Work> batch);
  // Goes as far as it can without waiting. True when anything moved.
  bool progress();
  // Asleep in the backend until the running collective is through, or until the deadline. Only while in_flight().
  void wait(int64_t deadline_ns);

  bool idle() const { return queue_.empty(); }
  bool in_flight() const { return !queue_.empty() && started_; }

  void abort() noexcept;
  // After abort: until the running collective has let go of its buffers, or the deadline.
  void settle(int64_t deadline_ns) noexcept;
  // Forgets all batches (after abort). The requests are the engine's to fail.
  void clear();

 private:
  struct Comm {
    std::unique_ptr<plugin::Communicator> comm;
    std::vector<int32_t> members;
  };
  struct Batch {
    control::SetId set = 0;
    std::vector<Work> work;
  };
  // One tensor of the running batch.
  struct Piece {
    size_t work = 0, index = 0;
    void* in = nullptr;
    void* out = nullptr;
    uint64_t count = 0;
    int32_t dtype = 0;
  };

  void prepare();
  void plan_by_dtype();
  void prepare_sizes();
  void prepare_allgather();
  void next_collective();
  void add_collective(int32_t coll, int32_t dtype, const std::vector<size_t>& pieces);
  void scatter_packed();
  void finish_batch();
  void* neutral(uint64_t bytes, int32_t dtype, int32_t op);

  const int32_t rank_;
  const std::vector<int32_t> hosts_;
  std::shared_ptr<plugin::Backend> backend_;
  plugin::Store& store_;
  Events& events_;
  std::mutex comms_mutex_;  // abort() looks at comms_ from other threads
  std::map<control::SetId, Comm> comms_;

  std::deque<Batch> queue_;
  // State of the batch at the front of the queue.
  enum class Stage { Fresh, Sizes, Data } stage_ = Stage::Fresh;
  bool started_ = false;
  Comm* comm_ = nullptr;
  std::vector<Piece> pieces_;
  std::vector<std::vector<size_t>> plan_;  // pieces by collective
  size_t step_ = 0;
  plugin::Collective collective_;
  std::vector<int64_t> my_sizes_, all_sizes_;
  std::vector<queue::Output> scratch_;  // neutral data and outputs of a rank that has joined
  std::vector<char> packed_;
  bool is_packed_ = false;
  uint64_t seq_ = 0;
};

}  // namespace hvd::data
