// One communicator of the shm backend: its life, and the progress of the one operation it may have in flight.
//
// Progress. Every rank posts a Hello per operation and then, for large ones, walks the same fixed schedule: iteration i
// runs stage 0 of chunk i, stage 1 of chunk i - 1, stage 2 of chunk i - 2. RankCtl::steps says how far a rank has come:
// 3 * G + s means "stages below s of iteration G are done", where G counts iterations over the communicator's life.
//   - stage s > 0 of iteration G starts when all have finished stage s - 1 of iteration G - 1;
//   - stage 0 of iteration G reuses the slot of G - kSlots when all have finished iteration G - kSlots + 2, which is
//     the last that reads it;
//   - the two Hello lines and small areas of a rank alternate: whoever posts operation n has seen everybody's post of
//     n - 1, so everybody has finished n - 2.
// No rank reads another's slots before it has compared all Hellos, so a disagreement does no harm.
//
// start, test, wait, free, finalize: one thread at a time (T1). abort and async_error: any thread (T2).
#pragma once

#include <memory>
#include <vector>

#include "op.h"
#include "segment.h"

namespace hvd::shm {

// Where ranks wait for a processor, one hop saves so many switches that it is worth this much more data.
constexpr uint64_t kCrowdedFactor = 4;

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

  hvd_rc attach(int64_t deadline_ns, hvd_error* err);
  void choose_sizes();
  void begin_chunks();
  void post_hello();
  bool hellos_in();
  hvd_rc compare_hellos(hvd_error* err);
  hvd_rc compare_sizes(hvd_error* err);
  bool reached(uint64_t steps);
  void publish(uint64_t steps);
  void flush();
  hvd_rc advance(hvd_error* err);
  hvd_rc advance_chunks(hvd_error* err);
  hvd_rc end(hvd_rc rc);
  hvd_rc stalled(hvd_error* err);
  hvd_rc give_up(hvd_error* err);
  void sleep(int64_t deadline_ns, hvd_error* err, hvd_rc* rc);
  void wake_sleepers();
  void wake_everybody();
  void declare_failed(hvd_rc code);
  hvd_rc failure(hvd_error* err) const;
  hvd_rc report_failure(uint32_t word, hvd_error* err) const;

  RankCtl& mine() const { return segment_.ctl(rank_); }

  const uint32_t rank_, size_;
  Segment segment_;
  std::atomic<uint32_t> alone_failed_{0};      // stands in for Header::failed when there is no segment (size 1)
  mutable std::atomic<uint32_t> visitors_{0};  // threads inside abort or async_error
  bool crowded_ = false;                       // fewer processors than ranks; all ranks come to the same answer
  int64_t spin_ns_ = 0;

  enum class Phase { kIdle, kHello, kChunks, kDone };
  Phase phase_ = Phase::kIdle;
  hvd_rc result_ = HVD_OK;  // of an operation that is done but not freed

  Op op_;
  Room room_{};
  int64_t deadline_ns_ = HVD_NO_DEADLINE;
  bool small_ = false, compared_ = false;
  uint64_t n_chunks_ = 0, iteration_ = 0, first_iteration_ = 0;
  uint32_t stage_ = 0;
  uint64_t published_ = 0;      // this rank's steps
  bool flushed_ = true;         // sleeping ranks have been told of them
  uint64_t moves_ = 0;          // grows with every bit of progress
  std::vector<uint64_t> seen_;  // last known steps of every rank
  uint64_t everybody_ = 0;      // a lower bound of them all
  uint32_t lagging_ = 0;        // the rank whose steps were missing last
  uint32_t greeted_ = 0;        // the Hellos of all ranks before this one have been seen
  std::vector<const void*> sources_;
  std::unique_ptr<char[]> scratch_;
};

}  // namespace hvd::shm
