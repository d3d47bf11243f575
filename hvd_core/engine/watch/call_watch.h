// Watches the engine's calls into backends, and operations that backends do not complete, and decides what follows. See
// docs/reliability.md for the rules, and plugins/backend_call.h for what is recorded.
//
// look() is called by the thread hvd-watch, the only one. It takes no lock of those that it watches. Ending the job,
// and leaving a thread behind, is the engine's part (Host).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "engine/plugins/backend_call.h"
#include "engine/watch/watch_thread.h"

namespace hvd::watch {

class CallWatch {
 public:
  struct Limits {
    int64_t warn_ns = 0;                                                  // until a report; 0: never
    int64_t operation_ns = 0;                                             // until an operation ends the job; 0: never
    int64_t create_ns = 0;                                                // for the making of communicators
    int64_t end_ns = 0;                                                   // for their finalization and destruction
    const char* operation_setting = "HOROVOD_OPERATION_TIMEOUT_SECONDS";  // which says operation_ns
  };
  struct Host {
    virtual ~Host() = default;
    virtual bool stopped() const = 0;
    // The job has ended, and the engine waits for its threads and destroys its communicators.
    virtual bool is_closing() const = 0;
    // Ends the job on all ranks. Does not wait for the driver.
    virtual void end_job(const std::string& cause) = 0;
    // The driver has not come back from `call`, although its communicator was aborted. Returns false if it has now.
    virtual bool leave_driver_behind(uint64_t call, const std::string& cause) = 0;
    // A thread of the program does not come back from loading, or from the destruction of communicators.
    virtual void end_process(const std::string& cause) = 0;
  };

  // Calls that run now are not this engine's: threads of an earlier one were left behind in them.
  CallWatch(const plugins::DriverRecord& driver, const Limits& limits, Host& host);

  // A call may be about to begin. Any thread.
  void wake() noexcept { thread_->wake(); }
  // Ends the thread; wake() must not be called any more.
  void stop() { thread_.reset(); }

  // Returns when to look again: INT64_MAX when nothing is under way.
  int64_t look(int64_t time);

  // The call or the operation that is under way, for `hvd doctor`; empty: no call is. Any thread.
  std::string under_way(int64_t time) const;
  // The calls that are under way, for a process that exits: "in the call destroy of backend 'x' while an operation of
  // backend 'x' was in flight"; empty: no call is. Any thread.
  std::string inside() const;

 private:
  // How long a call or an operation has lasted, to within the time between two looks.
  struct Lasting {
    std::atomic<uint64_t> seen{0};
    std::atomic<int64_t> since{0};
    int64_t next_report = 0;
    bool over = false;  // what follows has been done
    int64_t age(uint64_t current, int64_t now);
    int64_t known_age(uint64_t current, int64_t now) const;
  };
  void look_at_driver(int64_t now);
  bool look_at_slot(size_t index, int64_t now);
  uint64_t limited_call(size_t index) const;
  void end_job(const std::string& cause, int64_t now);
  void report(Lasting& lasting, int64_t age, const std::string& text);
  std::string describe_operation(uint64_t call, int64_t age) const;

  const plugins::DriverRecord& driver_;
  const Limits limits_;
  Host& host_;
  Lasting operation_, call_;  // of the driver
  static constexpr size_t kSlots = std::tuple_size_v<decltype(plugins::CallMemory::slots)>;
  std::array<Lasting, kSlots> calls_;
  std::array<uint64_t, kSlots> foreign_;  // calls that are not this engine's
  std::string cause_;                     // with which the job was ended
  int64_t ended_at_ = 0;                  // 0: not by this object
  // Time in which this thread could not look counts for no limit: the process was stopped, or its host was.
  std::atomic<int64_t> unobserved_{0};
  int64_t last_look_ = 0, pause_ = 0;  // 0: nothing was under way
  std::unique_ptr<WatchThread> thread_;
};

}  // namespace hvd::watch
