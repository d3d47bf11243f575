// Answers `hvd doctor --pid` and `hvd doctor --job`: a Unix socket on a thread of its own, which needs neither the GIL
// nor the engine's driver, so that a process answers whichever of its threads is stuck.
//
// The driver and the stack sampler have a moment each; what does not come in time is left out, and the answer says so.
// The socket has an abstract name, so nothing is left behind when the process ends in any way. Only processes of the
// same user, or root, are answered. A question is one line; the answer ends with the connection.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/watch/snapshot.h"
#include "engine/watch/stack_sampler.h"

namespace hvd::watch {

class Doctor {
 public:
  using ProcessSets = std::map<int32_t, std::vector<int32_t>>;  // members by the users' ids

  // Called on the doctor's thread.
  class Host {
   public:
    // The driver calls set_own() soon. With `all_ranks` add_snapshot() brings those of the other ranks, via rank 0.
    virtual void wake_for_doctor(bool all_ranks) = 0;
    // What is known without the driver.
    virtual Snapshot snapshot_of_stuck_rank() const = 0;

   protected:
    ~Host() = default;
  };
  // Ids of requests for snapshots that are the doctor's: this one for rank 0, and for rank r the r-th after it.
  static constexpr uint32_t kRequests = 1u << 31;

  // `facts`: about this process, one line of JSON. `program`: may be null.
  Doctor(std::string facts, int32_t size, const std::shared_ptr<const Program>& program, Host& host);
  ~Doctor() { stop(); }
  Doctor(const Doctor&) = delete;

  // From now on questions come. `name`: of the socket, without the zero byte in front; at most 100 bytes. Throws
  // std::system_error.
  void serve(const std::string& name);
  // Ends the threads, after the answer that is being made; the driver may go on to call the setters. The caller must
  // not hold the GIL.
  void stop();
  // For a forked child: the parent's socket must not stay open when the parent has ended.
  void close_socket() noexcept;

  // Called by the driver: this rank's snapshot without stacks; the encoded snapshot of another rank.
  void set_own(Snapshot own, ProcessSets process_sets);
  void add_snapshot(int32_t rank, std::string snapshot);

 private:
  void run();
  void answer_peer(int fd);
  std::string answer(const std::string& question);
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time, Ready&& ready);

  const std::string facts_;
  const size_t size_;
  Host& host_;
  std::unique_ptr<StackSampler> sampler_;
  std::mutex mutex_;  // protects quit_, own_, process_sets_, others_
  std::condition_variable changed_;
  bool quit_ = false;
  std::optional<Snapshot> own_;
  ProcessSets process_sets_;
  std::map<int32_t, std::string> others_;
  bool refused_ = false;  // another user, before
  std::atomic<int> listener_{-1};
  std::thread thread_;
};

}  // namespace hvd::watch
