// One operation of a communicator, from its call to its end, and the communicator's queue of operations.
//
// A collective begins with a gate: a tiny allreduce of each rank's signature. After the gate all ranks have come and
// agree. So an operation that waits for a rank which never comes can be abandoned before MPI has seen a buffer, all
// ranks learn of a disagreement, and a blocking call blocks only as long as the data take. Operations that the host
// marks HVD_COLL_AGREED, as the engine does, have been agreed on already and need no gate. Then the operation itself:
// nonblocking and driven by the waiting thread, or a blocking call, for which MPI libraries are tuned. The driving
// thread makes short blocking calls, a thread of its own makes long ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <hvd/backend.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "mpi_call.h"
#include "work_thread.h"

struct Operation {
  MpiCall call;
  int32_t dtype = 0;
  uint64_t bytes = 0;      // of the largest buffer that this rank sees
  uint64_t signature = 0;  // equal on all ranks that ask for the same operation; unused if agreed
  int64_t deadline_ns = 0;
  int64_t begun_ns = 0;
  bool agreed = false;  // no gate

  // Before it: `copy_bytes` from call.in to `work`, which becomes the input (and, where in_place, the output as well).
  double prescale = 1, postscale = 1;
  uint32_t divisor = 1;  // of an average
  void* work = nullptr;
  uint64_t work_count = 0, work_bytes = 0;
  bool in_place = false;
  std::unique_ptr<char[]> scratch;
  void* result = nullptr;  // postscaled
  uint64_t result_count = 0;

  enum State { kQueued, kGate, kRunning, kBlocking, kDone } state = kQueued;
  // Signature, its complement, bytes, other collectives in flight in this process; and their maxima over the ranks.
  int64_t said[4] = {}, heard[4] = {};
  Handle request = 0;
  int result_code = 0;  // of a blocking call
  std::optional<hvd::Error> error;
  bool harmless = false;  // ... after which the communicator is as good as before
};

// The part that all operations of one communicator share. One thread at a time, except for abort(); outlives its
// requests.
class Channel {
 public:
  // blocking_from: bytes from which on collectives are made as blocking calls; all ranks have the same.
  // HVD_NO_DEADLINE: never. Takes over the MPI communicator.
  Channel(Handle comm, int64_t blocking_from, void* notify_token);
  // Local. Frees the MPI communicator, unless an operation may still be in flight in it.
  ~Channel();

  // Queues the operation behind the earlier ones. Throws if the communicator can do no more.
  void post(const std::shared_ptr<Operation>& operation);
  // Drives; true when the operation is complete. Throws its error; ABORTED only when MPI no longer uses its buffers.
  bool test(Operation& operation);
  // The same until deadline_ns, mostly asleep.
  bool wait(Operation& operation, int64_t deadline_ns);
  // The host frees the request; an operation that is still in flight is kept alive for ever.
  void abandon(const std::shared_ptr<Operation>& operation);
  // Any thread; does not block.
  void abort() { aborted_ = true; }

 private:
  void advance();
  void step(Operation& operation);
  void begin(Operation& operation);
  void make_blocking(Operation& operation);
  void finish(Operation& operation, int result);
  bool pump(Operation& operation);
  bool answer(Operation& operation);
  [[noreturn]] void fail(hvd::Error error);

  const Handle comm_;
  const int64_t blocking_from_;
  void* const notify_token_;
  std::atomic<bool> aborted_{false};
  std::deque<std::shared_ptr<Operation>> row_;  // collectives; only the first one is in flight
  std::optional<hvd::Error> failed_;
  bool dirty_ = false;
  WorkThread thread_;                      // for long blocking calls
  std::shared_ptr<WorkThread::Job> made_;  // the one that it makes
};
