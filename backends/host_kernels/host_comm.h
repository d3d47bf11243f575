// The base of the communicators for host memory: what shm and tcp have in common between the ABI and their own
// progress.
//
// A communicator carries out one collective at a time, and is its own request, so that no call allocates memory. T has:
//   void begin(const hvd_coll_args&)   starts `collective_`, which has been read and checked; more than one rank
//   bool advance()                     a little progress, without sleeping; true when the collective is complete
//   bool test_collective()             the same, and throws HVD_E_TIMEOUT when the collective's deadline has passed
//   bool wait_for_collective(int64_t deadline_ns)   sleeps; false when this wait's own deadline comes first
//   void check_failure() const         throws if the communicator has failed or was aborted
// All but the constructor, abort() and async_error() run on one thread at a time (T1).
#pragma once

#include <atomic>
#include <cstdint>

#include "collective.h"
#include "hvd/backend.hpp"
#include "options.h"
#include "support.h"

namespace hvd::host_kernels {

// Counts a call of another thread (abort, async_error) as long as it is inside. A communicator's destructor waits for
// these calls.
class CountedCall {
 public:
  explicit CountedCall(std::atomic<uint32_t>& calls) : calls_(calls) { calls_.fetch_add(1); }
  ~CountedCall() { calls_.fetch_sub(1); }
  CountedCall(const CountedCall&) = delete;

 private:
  std::atomic<uint32_t>& calls_;
};

template <class T>
class HostComm : public hvd::Comm<T>, public hvd::Request {
 public:
  static constexpr const char* device_types = "cpu";
  static constexpr const char* version = "1.0.0";
  static constexpr bool reports_abort = true;
  static constexpr bool checks_sizes = true;  // in read_collective()
  static void load() { choose_kernels_by_option(); }
  static hvd_coll_caps query(const Coll& c) {
    hvd_coll_caps caps = {};
    caps.alignment = 1;
    if (!is_served(c.args())) return caps;
    caps.support = HVD_NATIVE;
    caps.score = 100;
    caps.max_count = UINT64_MAX;
    return caps;
  }
  static Error why_unserved(const Coll& c) { return why_not_served(c.args()); }

  explicit HostComm(const CommInit& init)
      : hvd::Comm<T>(init), rank_(static_cast<uint32_t>(init.rank)), size_(static_cast<uint32_t>(init.size)) {}

  Work allreduce(const Coll& c) { return start(c.args()); }
  Work reduce(const Coll& c) { return start(c.args()); }
  Work broadcast(const Coll& c) { return start(c.args()); }
  Work allgather(const Coll& c) { return start(c.args()); }
  Work reducescatter(const Coll& c) { return start(c.args()); }
  Work alltoall(const Coll& c) { return start(c.args()); }
  Work barrier(const Coll& c) { return start(c.args()); }

  bool test() final {
    return state_ == State::kDone ? outcome() : recorded([this] { return self().test_collective(); });
  }
  bool wait(int64_t deadline_ns) final {
    if (state_ == State::kDone) return outcome();
    return recorded([=, this] { return self().wait_for_collective(op_deadline(deadline_ns)); });
  }
  void free_request() final {
    if (state_ == State::kRunning) throw Error(HVD_E_INVALID, "the collective of this request is still in flight");
    state_ = State::kIdle;
  }

  // A barrier: afterwards no rank needs anything of another.
  void finalize(int64_t deadline_ns) {
    hvd_coll_args args = {};
    args.hdr.struct_size = sizeof args;
    args.coll = HVD_BARRIER;
    args.deadline_ns = blocking_deadline(deadline_ns, kFinalizeSeconds);
    if (begun(args)) return;
    try {
      wait(HVD_NO_DEADLINE);
    } catch (...) {
      free_request();
      throw;
    }
    free_request();
  }

 protected:
  const uint32_t rank_, size_;
  Collective collective_;

 private:
  static constexpr int64_t kFinalizeSeconds = 30;
  enum class State { kIdle, kRunning, kDone };

  T& self() { return static_cast<T&>(*this); }

  Work start(const hvd_coll_args& args) { return begun(args) ? Work::done() : Work::in_flight(*this); }

  // True when the collective is complete already, and there is no request.
  bool begun(const hvd_coll_args& args) {
    if (state_ != State::kIdle) {
      throw formatted_error(
          HVD_E_INVALID, 0,
          "an earlier operation of this communicator is %s; one at a time: wait for it, then req_free it",
          state_ == State::kDone ? "complete but not freed" : "still in flight");
    }
    self().check_failure();
    read_collective(args, rank_, size_, &collective_);
    if (size_ == 1) {
      run_alone(collective_);
      return true;
    }
    self().begin(args);
    const bool complete = self().advance();
    if (!complete) state_ = State::kRunning;
    return complete;
  }

  // Runs a step that says whether the collective is complete, and keeps how the collective ended.
  template <class Step>
  bool recorded(Step step) {
    try {
      if (!step()) return false;
      result_ = HVD_OK;
    } catch (const Error& error) {
      state_ = State::kDone;
      result_ = error.code;
      throw;
    } catch (...) {
      state_ = State::kDone;
      result_ = HVD_E_INTERNAL;
      throw;
    }
    state_ = State::kDone;
    return true;
  }

  bool outcome() const {
    if (result_ != HVD_OK) throw Error(result_, "this operation had already failed");
    return true;
  }

  State state_ = State::kIdle;
  hvd_rc result_ = HVD_OK;  // of the collective that is complete and whose request is not freed
};

}  // namespace hvd::host_kernels
