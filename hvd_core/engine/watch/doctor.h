// Answers `hvd doctor --pid` and `hvd doctor --job`: a Unix socket on a thread of its own, which needs neither Python's
// lock nor the engine's driver, so that a process answers whichever of its threads is stuck.
//
// The socket has an abstract name, so nothing is left behind when the process ends in any way. Only processes of the
// same user, or root, are answered. A question is one line; the answer ends with the connection.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/watch/snapshot.h"
#include "engine/watch/stack_sampler.h"

namespace hvd::watch {

class AskServer {
 public:
  // Returns the answer to a question. Is called on the server's thread; it may take some seconds.
  using Answer = std::function<std::string(const std::string& question)>;

  // `name`: of the socket, without the zero byte in front; at most 100 bytes. Throws std::system_error.
  AskServer(const std::string& name, Answer answer);
  // Waits for an answer that is being made.
  ~AskServer();
  AskServer(const AskServer&) = delete;

  // In a forked child: the parent's socket must not stay open when the parent has ended.
  void close_in_child() noexcept;

 private:
  void serve();
  void answer_one(int fd);

  const Answer answer_;
  std::atomic<int> listener_{-1};
  int stop_fd_ = -1;
  bool refused_ = false;  // another user, before
  std::thread thread_;
};

// The engine's answers to `hvd doctor`: what this rank does now, and on rank 0 what all ranks do.
//
// A question comes on the server's thread. The driver and the stack sampler have a moment each; what does not come in
// time is left out, and the answer says so. So a process answers whichever of its threads is stuck.
class Doctor {
 public:
  // From the driver: this rank's snapshot without stacks, the state of the engine in lines, and the members of all
  // process sets by the users' ids.
  struct State {
    Snapshot snapshot;
    std::vector<std::string> engine;
    std::map<int32_t, std::vector<int32_t>> process_sets;
  };
  // Calls of the engine. wake(all_ranks): the driver calls set_state() soon, and with `all_ranks` requests the
  // snapshots of all ranks, by way of rank 0. Without the driver: last(), this rank's last submissions, and
  // under_way(), the call into a backend that runs.
  struct Engine {
    std::function<void(bool all_ranks)> wake;
    std::function<Snapshot()> last;
    std::function<std::string()> under_way;
    int32_t size = 1;
  };
  // Ids of requests for snapshots that are the doctor's: this one for rank 0, and for rank r the r-th after it.
  static constexpr uint32_t kRequests = 1u << 31;

  // `facts`: about this process, one line of JSON. `program`: may be null.
  Doctor(std::string facts, const std::shared_ptr<const Program>& program, Engine engine);
  ~Doctor() { stop(); }
  // From now on questions come, and the driver may be asked at any time. `name`: of the socket. Throws std::exception.
  void serve(const std::string& name);
  // Ends the threads; the driver may go on to call the setters. The caller must not hold the GIL.
  void stop();

  // Called by the driver.
  void set_state(State own);
  void add_snapshot(int32_t rank, std::string snapshot);
  void close_in_child() noexcept {
    if (server_) server_->close_in_child();
  }

 private:
  std::string answer(const std::string& question);
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time, Ready&& ready);

  const std::string facts_;
  const Engine engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool quit_ = false;
  std::optional<State> own_;
  std::map<int32_t, std::string> others_;
  std::unique_ptr<StackSampler> sampler_;
  std::unique_ptr<AskServer> server_;  // last: it calls the others
};

}  // namespace hvd::watch
