// See nccl_handle.h.
#include "nccl_handle.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace {

using Clock = std::chrono::steady_clock;

// How long a thread that ends the communicator lets a call come back by itself (first connections take seconds), and
// how long the host waits for an end.
constexpr auto kGrace = std::chrono::seconds(10);
constexpr auto kFinalizeTime = std::chrono::seconds(2);
// "No deadline" for clocks, which would overflow with HVD_NO_DEADLINE.
constexpr int64_t kForeverNs = int64_t{365} * 24 * 3600 * 1'000'000'000;

Clock::time_point at(int64_t deadline_ns) {
  if (deadline_ns <= 0) deadline_ns = hvd::now_ns() + hvd::kDefaultWaitNs;
  return Clock::time_point(std::chrono::nanoseconds(std::min(deadline_ns, hvd::now_ns() + kForeverNs)));
}

[[noreturn]] void aborted(const char* what) {
  throw hvd::Error(HVD_E_ABORTED, std::string(what) + ": the communicator was aborted", HVD_EF_COMM_DEAD);
}

[[noreturn]] void late(const std::string& text) { throw hvd::Error(HVD_E_TIMEOUT, text, HVD_EF_COMM_DEAD); }

}  // namespace

// ---------------------------------------------------------------------------------------------------------- beginning

void NcclHandle::begin(CudaDevice& device, const char* call, int64_t deadline_ns, Make make,
                       std::shared_ptr<NcclHandle> parent) {
  call_ = call;
  deadline_ns_ = deadline_ns;
  context_ = device.context();  // the device may be closed before the last of the threads has run
  CUDA(cuEventCreate(&last_, CU_EVENT_DISABLE_TIMING));
  const bool waits = parent != nullptr;
  std::thread([self = shared_from_this(), make = std::move(make), parent = std::move(parent)] {
    hvd::thread_enter("nccl join");
    self->join(make, parent);
  }).detach();
  if (!waits || wait_until(at(deadline_ns), entered_)) return;
  abort();  // the thread cleans up when it comes so far
  late(std::string(call) + ": an earlier call with the communicator it is split off has not come back in time");
}

// Returns when the creation is over, also if NCCL goes on in threads of its own: early versions use this thread's
// memory.
void NcclHandle::join(const Make& make, const std::shared_ptr<NcclHandle>& parent) {
  // A split that the host no longer waits for may still write it.
  auto comm = std::make_unique<ncclComm_t>(nullptr);
  std::exception_ptr failure;
  bool has_one = false;
  try {
    const CudaScope current(context_);
    const Lock lock = parent ? parent->enter(call_, deadline_ns_) : Lock();
    enters();
    ncclResult_t result = make(comm.get());
    if (result == ncclInProgress && parent) result = outcome(parent->comm_, parent.get());
    if (result == ncclInProgress && parent) comm.release();
    // A communicator in progress exists, and has to be freed even if its creation fails.
    has_one = comm && *comm && (result == ncclSuccess || result == ncclInProgress);
    if (has_one) result = outcome(*comm, nullptr);
    check_nccl(result, call_);
  } catch (...) {
    failure = std::current_exception();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  entered_ = joined_ = true;
  failure_ = failure;
  comm_ = has_one ? *comm : nullptr;
  changed_.notify_all();
  if (!abandoned_) return;
  lock.unlock();
  ended(&NcclApi::ncclCommAbort);
}

// Waits for the result of a communicator in progress; ncclInProgress if the creation was abandoned meanwhile.
ncclResult_t NcclHandle::outcome(ncclComm_t comm, const NcclHandle* of) {
  ncclResult_t state = ncclInProgress;
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      if (abandoned_ && !of) return ncclInProgress;
    }
    if (of && of->aborted_.load()) return ncclInProgress;
    NCCL(ncclCommGetAsyncError(comm, &state));
    if (state != ncclInProgress) return state;
  }
}

void NcclHandle::enters() {
  std::lock_guard<std::mutex> guard(mutex_);
  entered_ = true;
  changed_.notify_all();
}

bool NcclHandle::created() {
  if (ready_) return true;
  const bool over = deadline_ns_ > 0 && hvd::now_ns() >= deadline_ns_;
  std::lock_guard<std::mutex> guard(mutex_);
  if (joined_) {
    if (failure_) std::rethrow_exception(failure_);
    return ready_ = true;
  }
  if (over) late(std::string("not all ranks came to ") + call_ + " in time");
  return false;
}

// -------------------------------------------------------------------------------------------------------------- calls

NcclHandle::Lock NcclHandle::enter(const char* what, int64_t deadline_ns) {
  Lock lock(calls_, std::defer_lock);
  const auto until = at(deadline_ns);
  // A thread that aborts holds the lock as long as that takes; a thread that finalizes, until the other ranks answer.
  for (;;) {
    if (aborted_.load()) aborted(what);
    if (lock.try_lock_for(std::chrono::milliseconds(10))) break;
    if (Clock::now() >= until) late(std::string(what) + ": an earlier call has not come back in time");
  }
  if (comm_ == nullptr || aborted_.load()) aborted(what);
  return lock;
}

// Have NCCL's own threads enqueued all operations?
bool NcclHandle::settled(const char* what, int64_t deadline_ns) {
  const Lock lock = enter(what, deadline_ns);
  ncclResult_t state = ncclSuccess;
  NCCL(ncclCommGetAsyncError(comm_, &state));
  if (state == ncclInProgress) return false;
  check_nccl(state, what, comm_);
  return true;
}

void NcclHandle::settle(const char* what, int64_t deadline_ns) {
  if (hvd::poll_until(deadline_ns, [&] { return settled(what, deadline_ns); })) return;
  late(std::string(what) + ": NCCL has not enqueued it in time; it may wait for a rank to connect to");
}

void NcclHandle::group_begin() {
  Lock lock = enter("group", 0);
  NCCL(ncclGroupStart());
  group_deadline_ns_ = 0;
  group_stream_.reset();
  group_ = std::move(lock);
}

void NcclHandle::group_end() {
  Lock lock = std::move(group_);
  if (!lock.owns_lock()) return;
  const ncclResult_t result = nccl().ncclGroupEnd();
  if (result == ncclInProgress) {
    lock.unlock();
    settle("group", group_deadline_ns_);
  } else {
    check_nccl(result, "ncclGroupEnd", comm_);
  }
  if (group_stream_) enqueued_on(*group_stream_);
}

// An event stands for the stream, which may be destroyed before the event is asked. A communicator's operations follow
// each other on all streams. A failure here is told by a later call.
void NcclHandle::enqueued_on(CUstream stream) noexcept {
  if (group_.owns_lock()) {
    group_stream_ = stream;
  } else {
    cuda().cuEventRecord(last_, stream);
  }
}

bool NcclHandle::at_work() const { return cuda().cuEventQuery(last_) == CUDA_ERROR_NOT_READY; }

void NcclHandle::async_error() {
  // A thread that is inside a call gets the error from that call.
  const Lock lock(calls_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) return;
  ncclResult_t state = ncclSuccess;
  NCCL(ncclCommGetAsyncError(comm_, &state));
  if (state != ncclInProgress) check_nccl(state, "an earlier operation", comm_);
}

// ----------------------------------------------------------------------------------------------------------- endings

// Ends the communicator by a function of NCCL's, on a thread that may wait.
void NcclHandle::ended(ncclResult_t (*NcclApi::*how)(ncclComm_t)) noexcept {
  // Without a current context NCCL would make one, on the process's first device. Where the context does not work any
  // more, its kernels and threads still have to be told.
  std::optional<CudaScope> current;
  try {
    current.emplace(context_);
  } catch (const hvd::Error& e) {
    hvd::log(HVD_LOG_DEBUG, __FILE__, __LINE__, e.what());
  }
  Lock lock(calls_, std::defer_lock);
  // A call that stays inside NCCL, because a peer does not answer or the device's queue is full, comes out when it sees
  // the abort; NCCL is made for that. ncclCommFinalize does not look for it, and would go on in freed memory.
  const bool alone = lock.try_lock_for(kGrace);
  if (!alone && in_finalize_.load()) {
    hvd::log(HVD_LOG_WARN, __FILE__, __LINE__,
             "NCCL does not come back from ncclCommFinalize; the communicator is left as it is");
    return;
  }
  ncclComm_t comm = comm_.exchange(nullptr);
  if (comm != nullptr) (nccl().*how)(comm);
  if (alone) lock.unlock();
  if (current) cuda().cuEventDestroy(last_);
  std::lock_guard<std::mutex> guard(mutex_);
  over_ = true;
  changed_.notify_all();
}

// False when the time is over before `done` is true.
bool NcclHandle::wait_until(Clock::time_point until, const bool& done) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, until, [&] { return done; });
}

void NcclHandle::abort() {
  if (aborted_.exchange(true)) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(abandoned_, true) || !joined_) return;  // the joining thread cleans up
  }
  std::thread([self = shared_from_this()] {
    hvd::thread_enter("nccl abort");
    self->ended(&NcclApi::ncclCommAbort);
  }).detach();
}

void NcclHandle::finalize(int64_t deadline_ns) {
  if (nccl().ncclCommFinalize == nullptr) return;
  const auto until = at(deadline_ns);
  deadline_ns = std::chrono::nanoseconds(until.time_since_epoch()).count();
  if (!finalize_begun_) {
    // An abort ends operations in flight, but not an ncclCommFinalize that waits for them.
    if (!hvd::poll_until(deadline_ns, [&] { return aborted_.load() || !at_work(); }))
      late("ncclCommFinalize: operations that were enqueued before are not done in time");
    if (aborted_.load()) aborted("ncclCommFinalize");
    finalize_begun_ = true;
    start_finalize(deadline_ns);
  }
  if (!wait_until(until, finalize_over_)) late("ncclCommFinalize: the other ranks did not finalize in time");
  if (failure_) std::rethrow_exception(failure_);
}

void NcclHandle::start_finalize(int64_t deadline_ns) {
  std::thread([self = shared_from_this(), deadline_ns] {
    hvd::thread_enter("nccl finalize");
    std::exception_ptr failure;
    try {
      const CudaScope current(self->context_);
      self->run("ncclCommFinalize", deadline_ns, [&](Calls& calls) {
        self->in_finalize_ = true;
        const ncclResult_t result = nccl().ncclCommFinalize(calls.comm());
        self->in_finalize_ = false;
        calls.check(result, "ncclCommFinalize");
      });
    } catch (...) {
      failure = std::current_exception();
    }
    std::lock_guard<std::mutex> guard(self->mutex_);
    self->failure_ = failure;
    self->finalize_over_ = true;
    self->changed_.notify_all();
  }).detach();
}

void NcclHandle::end() noexcept {
  if (!ready_) return abort();
  if (!aborted_.load()) {
    try {
      finalize(std::chrono::nanoseconds((Clock::now() + kFinalizeTime).time_since_epoch()).count());
      std::thread([self = shared_from_this()] {
        hvd::thread_enter("nccl end");
        self->ended(&NcclApi::ncclCommDestroy);
      }).detach();
    } catch (const std::exception& e) {
      hvd::log(HVD_LOG_DEBUG, __FILE__, __LINE__, e.what());
      abort();
    }
  }
  if (!wait_until(Clock::now() + kFinalizeTime, over_))
    hvd::log(HVD_LOG_WARN, __FILE__, __LINE__,
             "NCCL has not freed a communicator within 2 s; a thread of this process still waits for it");
}
