// The engine's answers to `hvd doctor`: what this rank does now, and on rank 0 what all ranks do.
//
// A question comes on the server's thread (observe/ask_server.h). Stacks are read by the looker's threads, the requests
// by the driver, each within a moment; what does not come in time is left out, and the answer says so. So a process
// answers whichever of its threads is stuck.
#pragma once

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
#include <vector>

#include "engine/observe/ask_server.h"
#include "engine/observe/looker.h"
#include "engine/observe/program.h"
#include "engine/observe/snapshot.h"

namespace hvd {

class Doctor {
 public:
  // What the driver tells: this rank's snapshot without stacks, the state of the engine in lines, and the members of
  // all process sets by the users' numbers.
  struct Told {
    observe::Snapshot snapshot;
    std::vector<std::string> engine;
    std::map<int32_t, std::vector<int32_t>> process_sets;
  };
  // Calls of the engine. wake(all_ranks): the driver calls told() soon, and with `all_ranks` asks all ranks for their
  // snapshots, by way of rank 0. Without the driver: last(), this rank's last submissions, and under_way(), the call
  // into a backend that runs.
  struct Engine {
    std::function<void(bool all_ranks)> wake;
    std::function<observe::Snapshot()> last;
    std::function<std::string()> under_way;
    int32_t size = 1;
  };
  // Numbers of looks that are the doctor's: this one for rank 0, and for rank r the r-th after it.
  static constexpr uint32_t kLooks = 1u << 31;

  // `facts`: about this process, one line of JSON.
  Doctor(std::string facts, std::shared_ptr<const observe::Program> program, Engine engine);
  ~Doctor() { stop(); }
  // From now on questions come, and the driver may be asked at any time. `name`: of the socket. Throws std::exception.
  void serve(const std::string& name);
  // Ends the threads; the driver may go on to call told(). The caller must not hold the program's lock.
  void stop();

  // Called by the driver.
  void told(Told own);
  void told(int32_t rank, std::string snapshot);
  void close_in_child() noexcept {
    if (server_) server_->close_in_child();
  }

 private:
  std::string answer(const std::string& question);
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds time, Ready&& ready);

  const std::string facts_;
  const Engine engine_;
  const bool has_program_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool quit_ = false;
  std::optional<Told> own_;
  std::optional<observe::Threads> threads_;
  std::map<int32_t, std::string> others_;
  std::unique_ptr<observe::Looker> looker_;
  std::unique_ptr<observe::AskServer> server_;  // last: it calls the others
};

}  // namespace hvd
