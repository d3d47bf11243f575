// One communicator of the shm backend: its life, and the progress of the one collective it may have in flight.
//
// Progress. Every rank posts a Hello per operation and then, for large ones, walks the same fixed schedule: iteration i
// runs stage 0 of chunk i, stage 1 of chunk i - 1, stage 2 of chunk i - 2. RankCtl::steps says how far a rank has come:
// 3 * G + s means "stages below s of iteration G are done", where G counts iterations over the communicator's life.
//   - stage s > 0 of iteration G starts when all ranks have finished stage s - 1 of iteration G - 1;
//   - stage 0 of iteration G reuses the slot of G - kSlots when all ranks have finished iteration G - kSlots + 2, which
//     is the last that reads it;
//   - the two Hello lines and small areas of a rank alternate: a rank that posts operation n has seen every rank's post
//     of n - 1, so every rank has finished n - 2.
// No rank reads another's slots before it has compared all Hellos, so a disagreement does no harm.
// A rank whose buffers lie in windows says so in its Hello, and waits for all Hellos. Where all ranks say so, they
// reduce in place (direct.h), which counts as one iteration: a rank has finished it when it has written its slice to
// all buffers. Where some rank does not, all of them walk the schedule, and that rank may have begun already.
//
// Calls on a communicator: one thread at a time (T1). abort and async_error: any thread (T2).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "algorithm.h"
#include "direct.h"
#include "host_kernels/host_comm.h"
#include "rendezvous.h"
#include "segment.h"
#include "window.h"

namespace hvd::shm {

// Where ranks wait for a processor, one hop saves so many switches that it is worth this much more data.
constexpr uint64_t kCrowdedFactor = 4;

class ShmComm : public HostComm<ShmComm> {
 public:
  static constexpr uint64_t caps =
      HVD_CAP_REQUEST | HVD_CAP_VECTORED | HVD_CAP_ABORT | HVD_CAP_ONE_HOST | HVD_CAP_MEM_HOST | HVD_CAP_PROCESS_LOCAL;
  static constexpr hvd_option options[] = {
      make_option("spin_us", "int", "50", "0..1000000",
                  "Microseconds to look for a peer before sleeping. 0 where there are more ranks than processors."),
      make_option("chunk_kib", "int", "64", "4..65536",
                  "KiB of a large operation handed over at a time; each rank has 8 such slots. Rank 0's value counts."),
      make_option("small_kib", "int", "8", "1..1024",
                  "KiB up to which two ranks exchange everything in one step. Rank 0's value counts."),
      kIsaOption,
  };

  explicit ShmComm(const CommInit& init);
  ~ShmComm() override;
  void abort();
  void async_error() const;
  hvd_window window_create(const WindowInit& init, hvd_buf* part);
  void window_destroy(hvd_window window, int64_t deadline_ns);
  static void window_free(hvd_window window);
  // "in_place": how many allreduces of this process were carried out in windows.
  static std::string info(const std::string& key);

  // For HostComm, which says what these do.
  void begin(const hvd_coll_args& args);
  bool advance();
  bool test_collective();
  bool wait_for_collective(int64_t deadline_ns);
  void check_failure() const;

 private:
  void attach(const Meeting& meeting, int64_t deadline_ns);
  void choose_sizes();
  void begin_chunks();
  bool all_offer();
  void begin_direct();
  bool advance_direct();
  bool leave_direct(uint32_t word);
  void write_no_more();
  void post_hello();
  bool all_hellos_posted();
  void compare_all();
  void compare_hellos();
  void compare_sizes();
  bool reached(uint64_t steps);
  void publish(uint64_t steps);
  void flush();
  bool advance_chunks();
  void end(bool agreed);
  bool stalled();
  [[noreturn]] void give_up();
  bool sleep(int64_t deadline_ns);
  void wake_sleepers();
  void wake_all_ranks();
  void declare_failed(hvd_rc code);
  [[noreturn]] void throw_failure(uint32_t word) const;

  RankCtl& mine() const { return segment_.ctl(rank_); }

  Segment segment_;
  std::atomic<uint32_t> alone_failed_{0};          // stands in for Header::failed when there is no segment (size 1)
  mutable std::atomic<uint32_t> calls_inside_{0};  // threads inside abort or async_error
  bool crowded_ = false;                           // fewer processors than ranks; all ranks come to the same answer
  int64_t spin_ns_ = 0;

  enum class Phase { kHello, kChunks, kDirect };  // kDirect: see direct.h
  Phase phase_ = Phase::kHello;

  const Algorithm* algorithm_ = nullptr;
  SegmentView view_{};
  int64_t deadline_ns_ = HVD_NO_DEADLINE;
  uint32_t tests_ = 0;  // of collectives, for a look at the clock now and then
  bool small_ = false, compared_ = false;
  uint64_t n_chunks_ = 0, iteration_ = 0, first_iteration_ = 0;
  uint32_t stage_ = 0;
  uint64_t published_ = 0;      // this rank's steps
  bool flushed_ = true;         // sleeping ranks have been told of them
  uint64_t moves_ = 0;          // grows with every bit of progress
  std::vector<uint64_t> seen_;  // last known steps of every rank
  uint64_t least_seen_ = 0;     // a lower bound of them all
  uint32_t lagging_ = 0;        // the rank whose steps were missing last
  uint32_t greeted_ = 0;        // the Hellos of all ranks before this one have been seen
  std::vector<const void*> sources_;
  std::unique_ptr<char[]> scratch_;
  Windows windows_;
  DirectReduction direct_;
  static std::atomic<uint64_t> in_place_;
  bool offered_ = false;  // this rank's buffers of the collective lie in windows
  std::vector<const uint64_t*> places_;
  int64_t leave_until_ns_ = 0;  // 0: no failure has been seen in a reduction in place
};

}  // namespace hvd::shm
