// One communicator of the tcp backend: its connections, and the progress of the one operation it may have in flight.
//
// There are no threads. start and test move what can be moved without blocking; wait sleeps in epoll on the
// connections and on the eventfd that abort writes. Connections are watched edge by edge, so that a peer that is
// already in the next operation wakes nobody twice; Link remembers what the last edge said. A failure of any kind ends
// the communicator: the connections are shut down, so that the peers fail too, and no buffer is touched any more.
//
// start, test, wait, free, finalize: one thread at a time (T1). abort and async_error: any thread (T2).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "choose.h"
#include "link.h"
#include "schedule.h"
#include "settings.h"

namespace hvd::tcp {

class Comm {
 public:
  ~Comm();
  static hvd_rc create(const hvd_comm_args& args, Comm** out, hvd_error* err);

  hvd_rc start(const hvd_coll_args& args, hvd_error* err);
  hvd_rc test(hvd_error* err);
  // Until completion, the operation's deadline (TIMEOUT, communicator dead) or this wait's own (INPROGRESS).
  hvd_rc wait(int64_t deadline_ns, hvd_error* err);
  hvd_rc free();
  hvd_rc finalize(int64_t deadline_ns, hvd_error* err);
  void abort();
  hvd_rc async_error(hvd_error* err) const;

 private:
  Comm(uint32_t rank, uint32_t size) : rank_(rank), size_(size) {}

  hvd_rc open_links(const hvd_comm_args& args, int64_t deadline_ns, hvd_error* err);

  // Progress (progress.cc). False of move_*: nothing could be done, or the communicator has failed.
  hvd_rc advance(hvd_error* err);
  bool move_in(Link& link);
  bool move_out(Link& link);
  bool accept_header(Link& link);
  bool others_remain(Link& link);
  void look();
  void poll_events(int timeout_ms);
  hvd_rc end(hvd_error* err);
  hvd_rc settle(hvd_rc rc);
  bool check_deadlines(int64_t now);
  void check_peers();
  uint32_t awaited_rank() const;

  // Failures (comm.cc). All return false.
  bool lost(Link& link, Link::Io io);
  bool disagreement(const Link& link);
  bool hear_farewell(Link& link);
  std::string others_gone(const Link& link) const;
  bool die(hvd_rc code, const char* format, ...) __attribute__((format(printf, 3, 4)));
  hvd_rc failure(hvd_error* err) const;
  void shut_down_links();

  const uint32_t rank_, size_;
  std::vector<std::string> names_;  // of all ranks, for messages
  std::vector<std::unique_ptr<Link>> links_;
  uint32_t lanes_ = 1;
  uint32_t peer_timeout_s_ = 0;
  Descriptor epoll_, bell_;

  // Why the communicator is dead; HVD_OK while it lives. The text is complete before the code is set.
  std::atomic<hvd_rc> dead_{HVD_OK};
  mutable std::mutex death_mutex_;
  std::string death_;
  mutable std::atomic<uint32_t> visitors_{0};  // threads inside abort or async_error

  enum class Phase { kIdle, kRunning, kDone };
  Phase phase_ = Phase::kIdle;
  hvd_rc result_ = HVD_OK;  // of an operation that is done but not freed
  bool hungry_ = false;     // the last advance ended with more to do at once

  Room room_;  // with the settings' chunk
  Plan plan_;
  Schedules schedules_;
  Schedule* schedule_ = nullptr;
  uint64_t seq_ = 0;
  int64_t deadline_ns_ = HVD_NO_DEADLINE;
  int64_t next_check_ns_ = 0;  // of the peers' signs of life
};

}  // namespace hvd::tcp
