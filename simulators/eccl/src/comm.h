// A communicator of one rank: connections to its peers, the order of its operations, and its one lasting failure.
//
// Operations are carried out by streams' threads, one at a time and in the order in which they were issued, also when
// they were issued on different streams. The first failure ends the connections, so that every rank learns of it.
#pragma once

#include <eccl.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "rendezvous.h"
#include "socket.h"

namespace sim {

// A factor of ecclRedOpCreatePreMulSum.
struct Scalar {
  ecclDataType_t type;
  double value;  // where `source` is empty
  Span source;   // device memory, read when the operation runs
};

class Comm {
 public:
  Comm(int rank, int device, std::vector<Socket> peers);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  int device() const { return device_; }
  int peer_fd(int rank) const { return peers_[static_cast<size_t>(rank)].fd(); }

  // Takes a place in the order. `put` queues the work that will call run() with it, before another call takes the next
  // place.
  void issue(const std::function<void(uint64_t)>& put);
  // On a stream's thread: waits for the turn, then does `work` unless the communicator has failed. A Failure thrown by
  // it becomes the communicator's.
  void run(uint64_t place, const std::function<void()>& work);
  // Until everything issued is over.
  void drain();

  // Ends the connections, which also wakes the thread that waits on them. Only the first time counts.
  void fail(const Failure& why);
  ecclResult_t state();
  std::string failure_text();

  ecclRedOp_t add_scalar(Scalar scalar);
  bool find_scalar(ecclRedOp_t op, Scalar* scalar);
  bool remove_scalar(ecclRedOp_t op);

  // Memory for the operation that is running; its contents are undefined.
  char* scratch(size_t bytes);

 private:
  const int rank_, device_;
  std::vector<Socket> peers_;
  std::mutex issuing_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t issued_ = 0, over_ = 0;
  bool failed_ = false;
  Failure failure_{ecclSuccess, ""};
  std::map<int, Scalar> scalars_;
  int next_scalar_ = ecclNumOps;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
};

using CommRef = std::shared_ptr<Comm>;

}  // namespace sim
