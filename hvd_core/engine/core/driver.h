// Who drives the engine, and how threads sleep and wake.
//
// There is one driver at a time: the thread that holds mutex_. A thread that submits and does not wait drives the
// control plane for a moment; a thread that waits drives everything until its request is settled; the background thread
// drives when no other thread does. No thread blocks on mutex_: a thread that cannot lock it leaves a message (inbox,
// bell) for the driver. A driver looks for messages once more after it has unlocked mutex_, so that no message is
// overlooked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/agreement/segment.h"
#include "engine/calls/request.h"

namespace hvd {

class Driver {
 public:
  // The engine.
  class Host {
   public:
    // By the driver. One round: takes what has come, and goes on with the job; with `execute` also with collectives,
    // which a thread that only submits does not. Returns whether there may be more to do.
    virtual bool round(bool execute) = 0;
    // An exception that round(), wait_for_data() or look() has thrown.
    virtual void broke_down(const char* why) noexcept = 0;
    virtual void wait_for_data(int64_t until_ns) = 0;
    virtual void look() = 0;  // whether requests have completed, and nothing more
    // A batch that the threads must go on driving, or the job's end.
    virtual bool unfinished() const = 0;
    virtual bool in_flight() const = 0;  // a collective of a backend
    virtual int64_t next_deadline() const = 0;
    virtual bool has_input() = 0;
    // Any thread.
    virtual bool has_commands() const = 0;
    virtual bool stopped() const = 0;

   protected:
    ~Host() = default;
  };

  Driver(Host& host, int64_t spin_ns, int64_t coalesce_ns)
      : host_(host), spin_ns_(spin_ns), coalesce_ns_(coalesce_ns) {}
  Driver(const Driver&) = delete;

  // Before the first thread. `neighbours`: an epoll descriptor that is readable when a neighbour may have ended.
  void set_bell(agreement::BellWord* word, std::array<int, 2> eventfds, int neighbours);
  // Starts the background thread ("hvd-engine"), on `core` only if that is not negative.
  void start(int core);
  // Ends the background thread. If it never returns from a backend's call, leave_behind() instead.
  void stop();
  void leave_behind();

  // Drives the control plane if there are commands.
  void try_drive();
  // Wakes whichever thread sleeps as the driver.
  void ring() { bell_->ring(); }
  void ring_all();
  // Drives and sleeps until the request is settled (true), or `*enough` is true or it is `until_ns` (false).
  bool await(calls::Request& request, int64_t until_ns, const bool* enough);
  // Calls the host's look() if no thread drives.
  void try_look();
  bool is_background(std::thread::id id) const { return thread_.get_id() == id; }
  // The background thread is the driver now.
  bool background_drives() const { return background_drives_; }
  // Whether a sleeping thread saw that a neighbour may have ended, since the last question.
  bool neighbour_changed() { return changed_.load(std::memory_order_relaxed) && changed_.exchange(false); }
  // For the thread that closes the engine, after stop().
  std::mutex& mutex() { return mutex_; }

 private:
  void background();
  void leave();
  bool drive_for(const calls::Request& request, int64_t until_ns, const bool* enough);
  void sleep_as(agreement::BellState sleeper, int64_t until_ns);
  void listen(agreement::BellState sleeper, int64_t until_ns);
  template <typename F>
  bool guarded(F&& step);
  bool drive(bool execute);
  void wait_for_data(int64_t until_ns);

  Host& host_;
  const int64_t spin_ns_;  // how long a waiting caller looks before it sleeps
  const int64_t coalesce_ns_;
  std::mutex mutex_;
  std::optional<agreement::Doorbell> bell_;
  int neighbours_ = -1;
  bool owns_timer_ = false;          // under mutex_: the background thread was woken because of a deadline
  std::atomic<bool> narrow_{false};  // the background thread listens to its own bell only
  std::atomic<int64_t> background_until_{0};
  std::atomic<int32_t> parked_{0};
  std::atomic<bool> background_drives_{false}, changed_{false}, quit_{false};
  std::thread thread_;
};

}  // namespace hvd
