// One communicator of the tcp backend: its connections, and the progress of the one collective it may have in flight.
//
// There are no threads. begin and advance move what can be moved without blocking; wait_for_collective sleeps in epoll
// on the connections and on the eventfd that abort writes. Connections are watched edge by edge, so that a peer that is
// already in the next operation does not wake this rank twice; Link remembers what the last edge said. A failure of any
// kind ends the communicator: the connections are shut down, so that the peers fail too, and no buffer is touched any
// more.
//
// Calls on a communicator: one thread at a time (T1). abort and async_error: any thread (T2).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "choose.h"
#include "host_kernels/descriptor.h"
#include "host_kernels/host_comm.h"
#include "link.h"
#include "schedule.h"
#include "settings.h"

namespace hvd::tcp {

class TcpComm : public HostComm<TcpComm> {
 public:
  static constexpr uint64_t caps =
      HVD_CAP_REQUEST | HVD_CAP_VECTORED | HVD_CAP_ABORT | HVD_CAP_MEM_HOST | HVD_CAP_PROCESS_LOCAL;
  static constexpr hvd_option options[] = {
      make_option("iface", "str", "", "names, networks or addresses",
                  "Interfaces that ranks are reached at: a comma list of names (eth0), networks (10.0.0.0/8) or "
                  "addresses. Empty: "
                  "HOROVOD_GLOO_IFACE, else all, and connecting ranks try them in turn."),
      make_option("sockets_per_peer", "int", "1", "1..16",
                  "Connections to each peer; more help where the network limits a single one. Rank 0's value counts."),
      make_option("chunk_kib", "int", "256", "16..65536",
                  "KiB of the longest message of a large operation. Rank 0's value counts."),
      make_option(
          "small_kib", "int", "64", "0..16384",
          "KiB up to which a rank receives every rank's data at once instead of a share of it. Rank 0's value counts."),
      make_option("ring_ranks", "int", "16", "2..65535",
                  "Ranks above which large allreduces go around a ring. Rank 0's value counts."),
      make_option(
          "peer_timeout_s", "int", "30", "2..86400",
          "Seconds without a sign of life after which a peer's host counts as lost. The default can also be set by "
          "HOROVOD_GLOO_TIMEOUT_SECONDS."),
      make_option("buffer_kib", "int", "0", "0..1048576", "KiB of each socket's buffers; 0: the system's own tuning."),
      kIsaOption,
  };

  explicit TcpComm(const CommInit& init);
  ~TcpComm() override;
  void abort();
  void async_error() const;

  // For HostComm, which says what these do.
  void begin(const hvd_coll_args& args);
  bool advance();
  bool test_collective();
  bool wait_for_collective(int64_t deadline_ns);
  void check_failure() const;

 private:
  void open_links(const CommInit& init);

  // Progress (progress.cc). False of move_*: nothing could be done, or the communicator has failed.
  bool move_in(Link& link);
  bool move_out(Link& link);
  bool accept_header(Link& link);
  bool others_remain(Link& link);
  void look();
  void read_events();
  void check_deadlines(int64_t now);
  void check_peers();
  uint32_t awaited_rank() const;

  // Failures (tcp_comm.cc). All return false.
  bool lost(Link& link, Link::Io io);
  bool disagreement(const Link& link);
  bool read_failure_notice(Link& link);
  std::string others_gone(const Link& link) const;
  bool die(hvd_rc code, const char* format, ...) __attribute__((format(printf, 3, 4)));
  void shut_down_links();

  std::vector<std::string> names_;  // of all ranks, for messages
  std::vector<std::unique_ptr<Link>> links_;
  uint32_t sockets_per_peer_ = 1;
  uint32_t peer_timeout_s_ = 0;
  Descriptor epoll_, bell_;

  // Why the communicator is dead; HVD_OK while it lives. The text is complete before the code is set.
  std::atomic<hvd_rc> dead_{HVD_OK};
  mutable std::mutex death_mutex_;
  std::string death_;
  mutable std::atomic<uint32_t> calls_inside_{0};  // threads inside abort or async_error

  bool more_to_do_ = false;  // the last advance ended with more to do at once

  ScheduleParams params_;  // with the settings' chunk
  Schedules schedules_;
  Schedule* schedule_ = nullptr;
  uint64_t seq_ = 0;
  int64_t deadline_ns_ = HVD_NO_DEADLINE;
  int64_t next_check_ns_ = 0;  // of the peers' signs of life
};

}  // namespace hvd::tcp
