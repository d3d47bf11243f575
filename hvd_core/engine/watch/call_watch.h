// The thread "hvd-watch": it calls a function at the times that the function asks for, and sleeps while there is
// nothing to watch. It needs no interpreter, and no lock of those that it watches.
//
// The thread starts with the first wake(). Any thread may call wake(); the destructor ends the thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/plugins/call_record.h"

namespace hvd::watch {

class Watch {
 public:
  static constexpr int64_t kNever = INT64_MAX;

  // `look` gets the time (CLOCK_MONOTONIC, ns), and returns when it wants to be called next: kNever until wake(). It
  // must not throw, and must not destroy this object.
  explicit Watch(std::function<int64_t(int64_t)> look) : look_(std::move(look)) {}
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // There is something to watch. Costs a load while the thread is awake. A thread that cannot be started is reported
  // once: the engine works without it.
  void wake() noexcept {
    if (asleep_.load(std::memory_order_relaxed)) [[unlikely]]
      rouse();
  }

 private:
  void rouse() noexcept;
  void run();

  const std::function<int64_t(int64_t)> look_;
  std::atomic<bool> asleep_{true};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool quit_ = false, failed_ = false;
  std::thread thread_;
};

// Watches the engine's calls into backends, and operations that backends do not complete. See docs/reliability.md.
//
// look() is called by the thread hvd-watch (watch/call_watch.h), the only one. What follows from a call that does not
// come back is the engine's part (Host).

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
    // The program's thread does not come back from the destruction of communicators.
    virtual void end_process(const std::string& cause) = 0;
  };

  // How much later than a rank that is inside of a call the others report an operation, which may wait for that rank.
  static int64_t patience(int64_t operation_ns);

  CallWatch(const plugins::CallRecords& records, const Limits& limits, Host& host)
      : records_(records), limits_(limits), host_(host) {}

  // Returns when to look again: INT64_MAX when nothing is under way.
  int64_t look(int64_t time);

  // The call or the operation that is under way, for `hvd doctor`; empty: no call is. Any thread may ask.
  std::string under_way(int64_t time) const;

 private:
  // How long a call or an operation has lasted, to within the time between two looks.
  struct Lasting {
    std::atomic<uint64_t> seen{0};
    std::atomic<int64_t> since{0};
    int64_t next_report = 0;
    bool over = false;
    int64_t age(uint64_t current, int64_t now);
    int64_t known_age(uint64_t current, int64_t now) const;
  };
  void look_at_operation(int64_t now);
  void look_at_call(const plugins::CallRecord& record, Lasting& lasting, int64_t limit_ns, int64_t now,
                    bool ends_process);
  void end_job(const std::string& cause, int64_t now);
  void report(Lasting& lasting, int64_t age, const std::string& text);
  std::string describe_operation(uint64_t call, int64_t age) const;

  const plugins::CallRecords& records_;
  const Limits limits_;
  Host& host_;
  Lasting operation_, call_, loading_, creating_, ending_;
  std::string cause_;     // with which the job was ended
  int64_t ended_at_ = 0;  // 0: not by this object
  // Time in which this thread could not look counts for no limit: the process was stopped, or its host was.
  std::atomic<int64_t> unobserved_{0};
  int64_t last_look_ = 0, pause_ = 0;  // 0: nothing was under way
};

}  // namespace hvd::watch
