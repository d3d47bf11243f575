// One communicator of NCCL's, from its creation to its end, and the lock of the thread that is in a call with it.
//
// NCCL's calls can last as long as a peer likes, and this backend's may not. So creation, finalize, abort and destroy
// run on threads of their own, which keep the handle alive; the methods that the host calls wait for them until a
// deadline and then go on without them. begin(), created(), run(), the groups, finalize() and end() are the host's, one
// at a time; abort() and async_error() are for any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cuda_device.h"
#include "nccl_api.h"

class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  using Lock = std::unique_lock<std::timed_mutex>;
  // The call that makes the communicator: ncclCommInitRankConfig or ncclCommSplit.
  using Make = std::function<ncclResult_t(ncclComm_t*)>;

  // Begins to make the communicator on `device`. `call`: the name of the function in `make`. `parent`: the communicator
  // that it is split off, if any; the parent's later calls come behind this one.
  void begin(CudaDevice& device, const char* call, int64_t deadline_ns, Make make,
             std::shared_ptr<NcclHandle> parent = nullptr);
  // Is it made? Throws the error of its creation; HVD_E_TIMEOUT from the deadline of begin() on.
  bool created();

  // Lets `calls(Calls&)` make calls of NCCL's with the communicator, and returns when the library has enqueued them; in
  // a group of the host's, that is at its end. Throws what fails, HVD_E_ABORTED after abort(), HVD_E_TIMEOUT.
  class Calls;
  template <class F>
  void run(const char* what, int64_t deadline_ns, F&& calls);
  void group_begin();
  void group_end();
  // Tells the stream on which run() or the group has enqueued its operations.
  void enqueued_on(CUstream stream) noexcept;

  // NCCL's handle, for a call that already holds this one, as the joining of a child does.
  ncclComm_t raw() const { return comm_; }

  void abort();
  void async_error();
  // ncclCommFinalize, in which all ranks take part. Throws HVD_E_TIMEOUT.
  void finalize(int64_t deadline_ns);
  // Has it begun to end?
  bool leaving() const { return finalize_begun_ || aborted_.load(); }
  const std::atomic<bool>& abort_flag() const { return aborted_; }
  // Frees everything; bounded in time, and after abort() also local.
  void end() noexcept;

 private:
  void join(const Make& make, const std::shared_ptr<NcclHandle>& parent);
  ncclResult_t outcome(ncclComm_t comm, const NcclHandle* of);
  void enters();
  Lock enter(const char* what, int64_t deadline_ns);
  bool settled(const char* what, int64_t deadline_ns);
  bool at_work() const;
  void settle(const char* what, int64_t deadline_ns);
  void start_finalize(int64_t deadline_ns);
  void ended(ncclResult_t (*NcclApi::*how)(ncclComm_t)) noexcept;
  bool wait_until(std::chrono::steady_clock::time_point until, const bool& done);

  // Held by the thread that is in a call with comm_, but not while it waits for another thread of NCCL's.
  std::timed_mutex calls_;
  std::atomic<ncclComm_t> comm_{nullptr};
  Lock group_;  // held from group_begin() to group_end()
  int64_t group_deadline_ns_ = 0;
  std::optional<CUstream> group_stream_;

  CUcontext context_ = nullptr;
  CUevent last_ = nullptr;  // recorded behind the last operation

  std::atomic<bool> aborted_{false}, in_finalize_{false};
  bool ready_ = false, finalize_begun_ = false;  // the host's

  // The progress of the threads.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool entered_ = false, joined_ = false, abandoned_ = false, finalize_over_ = false, over_ = false;
  std::exception_ptr failure_;  // of the creation, then of finalize
  const char* call_ = "";
  int64_t deadline_ns_ = 0;
};

// The calls of one run(); each is checked. run() waits at its end for calls that have only begun.
class NcclHandle::Calls {
 public:
  Calls(ncclComm_t comm, bool grouped) : comm_(comm), grouped_(grouped) {}
  ncclComm_t comm() const { return comm_; }
  void check(ncclResult_t result, const char* call) {
    if (result == ncclInProgress) {
      begun_ = true;
    } else {
      check_nccl(result, call, comm_);
    }
  }
  // Whether run() itself is within a group of the host's.
  bool grouped() const { return grouped_; }
  bool begun() const { return begun_; }

 private:
  const ncclComm_t comm_;
  const bool grouped_;
  bool begun_ = false;
};

// COMM_CALL(calls, ncclAllReduce(...)): one of them.
#define COMM_CALL(calls, call) (calls).check(nccl().call, #call)

template <class F>
void NcclHandle::run(const char* what, int64_t deadline_ns, F&& make) {
  if (group_.owns_lock()) {
    Calls calls(comm_, true);
    make(calls);
    group_deadline_ns_ = deadline_ns;
    return;
  }
  Lock lock = enter(what, deadline_ns);
  Calls calls(comm_, false);
  make(calls);
  if (!calls.begun()) return;
  lock.unlock();
  settle(what, deadline_ns);
}
