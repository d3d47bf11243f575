// See mpi_operation.h.
#include "mpi_operation.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <hvd/backend_reduce.hpp>
#include <mutex>
#include <system_error>

#include "mpi_api.h"
#include "mpi_process.h"

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kShort = 16 << 20;         // bytes; some milliseconds
constexpr int64_t kShortBesides = 64 << 10;  // beside operations of other backends, which need this thread
constexpr int64_t kLarge = HVD_NO_DEADLINE - 1;

// Collectives of this process, of all communicators, that have begun and are not over.
std::atomic<int> g_under_way{0};

// Operations that MPI may still be working on when no thread waits for them any more. Their memory must stay.
void keep_for_ever(std::shared_ptr<Operation> operation) {
  static std::mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<Operation>>;
  std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(operation));
  mpi_is_damaged();
}

bool is_point_to_point(const Operation& o) { return o.call.kind == HVD_SEND || o.call.kind == HVD_RECV; }

hvd::Error aborted() { return {HVD_E_ABORTED, "the communicator was aborted", HVD_EF_COMM_DEAD}; }

// A waiting thread drives MPI: without a pause close to the beginning and while data should be moving, then with
// growing pauses.
void pause(const Operation& o, int64_t now) {
  const int64_t waited = now - o.begun_ns;
  const bool gate = o.state < Operation::kRunning;
  const int64_t lively = gate ? kMs / 5 : 2 * kMs + static_cast<int64_t>(o.bytes) * 5;  // at 200 MB/s
  if (waited < lively) {
    sched_yield();
    return;
  }
  const int64_t ns = std::min<int64_t>((waited - lively) / 16 + 10'000, kMs / 2);
  const timespec sleep{0, ns};
  nanosleep(&sleep, nullptr);
}

}  // namespace

Channel::Channel(Handle comm, int64_t blocking_from, void* notify_token)
    : comm_(comm), blocking_from_(blocking_from), notify_token_(notify_token) {}

Channel::~Channel() {
  for (auto& operation : row_) {
    if (operation->state != Operation::kQueued) --g_under_way;
    keep_for_ever(operation);
  }
  if (dirty_ || aborted_ || !row_.empty()) return;
  try {
    with_mpi([comm = comm_] {
      Handle handle = comm;
      mpi().Comm_free(&handle);
    });
  } catch (const hvd::Error&) {
    // MPI is finalized, and the communicator with it.
  }
}

void Channel::fail(hvd::Error error) {
  error.flags |= HVD_EF_COMM_DEAD;
  dirty_ = true;
  failed_ = error;
  throw error;
}

void Channel::post(const std::shared_ptr<Operation>& operation) {
  if (failed_) throw *failed_;
  operation->begun_ns = hvd::now_ns();
  with_mpi([&] {
    if (is_point_to_point(*operation)) return begin(*operation);
    row_.push_back(operation);
    advance();
  });
}

// An error is kept in its operation, for the caller that asks about that operation.
void Channel::advance() {
  while (!row_.empty()) {
    const std::shared_ptr<Operation> first = row_.front();
    try {
      step(*first);
    } catch (const hvd::Error& error) {
      first->state = Operation::kDone;
      first->error = error;
    }
    if (first->state != Operation::kDone) return;
    --g_under_way;
    row_.pop_front();
  }
}

// Drives the operation as far as it goes without waiting.
void Channel::step(Operation& o) {
  if (o.state == Operation::kQueued && o.agreed) {
    if (aborted_) return;
    // An alltoall's ranks see different numbers of bytes, and must all block or all not.
    o.heard[2] = o.call.kind == HVD_ALLTOALL ? kLarge : static_cast<int64_t>(o.bytes);
    o.heard[3] = g_under_way++;
    begin(o);
  }
  if (o.state == Operation::kQueued) {
    const auto signature = static_cast<int64_t>(o.signature >> 1);
    o.said[0] = signature;
    o.said[1] = ~signature;
    o.said[2] = static_cast<int64_t>(o.bytes);
    o.said[3] = g_under_way++;
    check_mpi(mpi().Iallreduce(o.said, o.heard, 4, mpi().types[HVD_INT64], mpi().max, comm_, &o.request), "Iallreduce");
    o.state = Operation::kGate;
  }
  if (o.state == Operation::kGate) {
    if (aborted_ || !pump(o)) return;
    if (o.heard[0] != ~o.heard[1]) {
      o.harmless = true;
      throw hvd::Error(HVD_E_INVALID, "the ranks ask for different things: another collective, type, size or root");
    }
    begin(o);
  }
  if (o.state == Operation::kRunning && pump(o)) finish(o, 0);
  if (o.state != Operation::kBlocking) return;
  if (thread_.wait(*made_, 0)) return finish(o, o.result_code);
  sched_yield();  // a caller that tests in a loop may occupy the core that the thread needs
}

// All ranks are here. From now on MPI reads and writes the buffers.
void Channel::begin(Operation& o) {
  if (o.work != nullptr) {
    if (o.work != o.call.in) std::memcpy(o.work, o.call.in, o.work_bytes);
    hvd::scale_elements(o.dtype, o.work, o.work_count, o.prescale);
    o.call.in = o.in_place ? mpi().in_place : o.work;
  }
  if (!is_point_to_point(o) && o.heard[2] >= blocking_from_) return make_blocking(o);
  o.state = Operation::kRunning;
  check_mpi(o.call.begin(comm_, &o.request), "a nonblocking operation");
}

// A short collective is made at once, on this thread: handing it to another thread costs more than the collective may
// take. (An operation that is not agreed may be beside one of another backend, which needs this thread: less is short
// then.) That is allowed only if no rank had another collective in flight: two ranks that block in two different
// collectives would wait for each other. Of any two collectives in flight together, the second one knew of the first,
// and no rank makes it in this way. Agreed collectives are made in one order on all ranks; for them, each rank looks
// only at its own collectives in flight.
void Channel::make_blocking(Operation& o) {
  o.state = Operation::kBlocking;
  if (o.heard[3] == 0 && (o.agreed ? static_cast<int64_t>(o.bytes) < kShort : o.heard[2] < kShortBesides)) {
    mpi_call_is_stuck(+1);
    const int result = o.call.make(comm_);
    mpi_call_is_stuck(-1);
    return finish(o, result);
  }
  const std::shared_ptr<Operation> self = row_.front();
  try {
    made_ = thread_.post(
        [self, comm = comm_] {
          mpi_call_is_stuck(+1);
          self->result_code = self->call.make(comm);
          mpi_call_is_stuck(-1);
        },
        [token = notify_token_] { hvd::host->notify(token); });
  } catch (const std::system_error& e) {
    throw hvd::Error(HVD_E_NOMEM, std::string("no thread for a blocking collective: ") + e.what());
  }
}

// True when the MPI request is complete.
bool Channel::pump(Operation& o) {
  int done = 0;
  check_mpi(mpi().Test(&o.request, &done, mpi().status_ignore), "Test");
  return done != 0;
}

void Channel::finish(Operation& o, int result) {
  check_mpi(result, "a blocking collective");
  if (o.result != nullptr && o.divisor != 1) hvd::divide_elements(o.dtype, o.result, o.result_count, o.divisor);
  if (o.result != nullptr && o.postscale != 1) hvd::scale_elements(o.dtype, o.result, o.result_count, o.postscale);
  o.state = Operation::kDone;
}

// The answer about an operation that is over.
bool Channel::answer(Operation& o) {
  if (aborted_) throw aborted();
  if (!o.error) return true;
  if (o.harmless) throw *o.error;
  fail(*o.error);
}

bool Channel::test(Operation& o) {
  if (o.state == Operation::kDone) return answer(o);
  if (failed_ && o.state <= Operation::kGate) throw *failed_;
  with_mpi([&] {
    if (!is_point_to_point(o)) return advance();
    if (aborted_ && o.call.kind == HVD_RECV) mpi().Cancel(&o.request);
    if (pump(o)) finish(o, 0);
  });
  if (o.state == Operation::kDone) return answer(o);
  if (aborted_) {
    if (o.state <= Operation::kGate) throw aborted();
    return false;
  }
  if (hvd::now_ns() < o.deadline_ns) return false;
  const bool came = o.state > Operation::kGate;
  fail({HVD_E_TIMEOUT, came ? "the operation was not completed by its deadline; a rank seems to have died in it"
                            : "not all ranks came to the operation by its deadline"});
}

bool Channel::wait(Operation& o, int64_t deadline_ns) {
  for (;;) {
    if (test(o)) return true;
    const int64_t now = hvd::now_ns();
    if (now >= deadline_ns) return false;
    if (o.state == Operation::kBlocking) {
      thread_.wait(*made_, std::min({deadline_ns, std::max(o.deadline_ns, now + kMs), now + 100 * kMs}));
    } else {
      pause(o, now);
    }
  }
}

void Channel::abandon(const std::shared_ptr<Operation>& operation) {
  if (operation->state == Operation::kDone) return;
  dirty_ = true;
  keep_for_ever(operation);
  const auto at = std::find(row_.begin(), row_.end(), operation);
  if (at == row_.end()) return;
  if (operation->state != Operation::kQueued) --g_under_way;
  row_.erase(at);
  if (!failed_) failed_ = hvd::Error(HVD_E_ABORTED, "an earlier operation was given up", HVD_EF_COMM_DEAD);
}
