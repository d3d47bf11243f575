// One operation of a communicator, from its call to its end, and the communicator's row of them.
//
// A collective begins with a gate: a tiny allreduce of what each rank asks for. Behind it, all ranks are there and
// agree; so an operation that waits for a rank which never comes can be let go of without MPI ever having seen a
// buffer, ranks that ask for different things all learn of it, and a blocking call blocks for as long as the data take.
// Operations that the host marks HVD_COLL_AGREED, as the engine does, have been agreed on already and need no gate.
// Then the operation itself: nonblocking and driven by the waiting thread, or a blocking call, for which MPI libraries
// are tuned. The driving thread makes short blocking calls, a thread of its own makes long ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <hvd/backend.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "mpi_call.h"
#include "mpi_worker.h"

struct Operation {
  MpiCall call;
  int32_t dtype = 0;
  uint64_t bytes = 0;      // of the largest buffer that this rank sees
  uint64_t signature = 0;  // equal on all ranks that ask for the same; unused where agreed
  int64_t deadline_ns = 0;
  int64_t begun_ns = 0;
  bool agreed = false;  // no gate

  // Before it: `copy_bytes` from call.in to `work`, which becomes the input (and, where in_place, the output as well).
  double prescale = 1, postscale = 1;
  void* work = nullptr;
  uint64_t work_count = 0, work_bytes = 0;
  bool in_place = false;
  std::unique_ptr<char[]> scratch;
  void* result = nullptr;  // postscaled
  uint64_t result_count = 0;

  enum State { kQueued, kGate, kRunning, kBlocking, kDone } state = kQueued;
  // Signature, its complement, bytes, other collectives under way in this process; and their maxima over the ranks.
  int64_t said[4] = {}, heard[4] = {};
  Handle request = 0;
  std::optional<hvd::Error> error;
  bool harmless = false;  // ... after which the communicator is as good as before
};

// What the operations of one communicator share. Used by one thread at a time, but for abort(); outlives its requests.
class Channel {
 public:
  // blocking_from: bytes from which on collectives are made as blocking calls; all ranks have the same.
  // HVD_NO_DEADLINE: never. Takes over the MPI communicator.
  Channel(Handle comm, int64_t blocking_from, void* notify_token);
  // Local. The MPI communicator is freed, unless something may still be going on in it.
  ~Channel();

  // Begins it, behind the ones before it. Throws when nothing more can be done here.
  void post(const std::shared_ptr<Operation>& operation);
  // Drives; true when the operation is complete. Throws what went wrong with it; ABORTED only when MPI has let go of
  // its buffers.
  bool test(Operation& operation);
  // The same until deadline_ns, mostly asleep.
  bool wait(Operation& operation, int64_t deadline_ns);
  // The request is given back; what is still under way is kept alive for ever.
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
  std::deque<std::shared_ptr<Operation>> row_;  // collectives; only the first one is under way
  std::optional<hvd::Error> failed_;
  bool dirty_ = false;
  Worker worker_;
};
