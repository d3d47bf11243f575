// The progress of a communicator's operation: start, test, wait. The rules that make it safe are in comm.h.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "comm.h"
#include "shared.h"
#include "wait.h"

namespace hvd::shm {
namespace {

constexpr int64_t kFinalizeSeconds = 30;
constexpr uint64_t kLeastChunk = 32768;
constexpr uint32_t kEagerSpins = 200;  // before each further look is preceded by a pause
constexpr uint32_t kLooksPerClock = 64;

const Algorithm* algorithm_of(int32_t coll) {
  switch (coll) {
    case HVD_ALLREDUCE:
      return &kAllreduce;
    case HVD_REDUCE:
      return &kReduce;
    case HVD_BROADCAST:
      return &kBroadcast;
    case HVD_ALLGATHER:
      return &kAllgather;
    case HVD_REDUCESCATTER:
      return &kReducescatter;
    case HVD_ALLTOALL:
      return &kAlltoall;
    default:
      return &kBarrier;
  }
}

}  // namespace

hvd_rc Comm::start(const hvd_coll_args& args, hvd_error* err) {
  if (phase_ != Phase::kIdle) {
    return fail(err, HVD_E_INVALID, 0,
                "an earlier operation of this communicator is %s; one at a time: wait for it, then req_free it",
                phase_ == Phase::kDone ? "complete but not freed" : "still in flight");
  }
  if (const hvd_rc rc = failure(err); rc != HVD_OK) return rc;
  if (const hvd_rc rc = read_plan(args, rank_, size_, &op_, err); rc != HVD_OK) return rc;
  op_.algorithm = algorithm_of(args.coll);
  if (size_ == 1) {
    run_alone(op_);
    return HVD_OK;
  }
  ++room_.seq;
  deadline_ns_ = op_deadline(args.deadline_ns);
  n_chunks_ = 0;
  compared_ = false;
  choose_sizes();
  post_hello();
  if (small_ || op_.exchange) {
    phase_ = Phase::kHello;
  } else {
    begin_chunks();
  }
  const hvd_rc rc = advance(err);
  if (rc != HVD_INPROGRESS) phase_ = Phase::kIdle;  // answered at once: there will be no request
  return rc;
}

// What is shown in one hop grows with the number of ranks that read it all, so the limit falls with their number.
void Comm::choose_sizes() {
  const uint64_t room = segment_.small_bytes();
  const uint64_t limit = crowded_ ? room : std::max<uint64_t>(2 * (room / kCrowdedFactor) / size_, 4096);
  small_ = !op_.exchange && op_.show <= std::min(limit, room);
}

// Some chunks, so that the stages of different ranks overlap, but none so small that the hand-overs dominate.
void Comm::begin_chunks() {
  const uint64_t unit = 64 * uint64_t{size_};
  const uint64_t total = op_.algorithm->sliced ? op_.extent * size_ : op_.extent;
  const uint64_t most = segment_.slot_bytes() / unit * unit;
  const uint64_t wanted = std::min(most, (std::max<uint64_t>(total / 8, kLeastChunk) + unit - 1) / unit * unit);
  n_chunks_ = (total + wanted - 1) / wanted;
  // Of nearly one size: a short last chunk costs as many hand-overs as a full one.
  if (n_chunks_ > 0) room_.chunk_bytes = ((total + n_chunks_ - 1) / n_chunks_ + unit - 1) / unit * unit;
  room_.chunk_base = first_iteration_;
  iteration_ = 0;
  stage_ = 0;
  phase_ = Phase::kChunks;
}

void Comm::post_hello() {
  Hello& hello = mine().hello[room_.seq & 1];
  hello.hash = op_.hash;
  std::memcpy(hello.words, op_.words, sizeof op_.words);
  if (small_) op_.algorithm->put(room_, op_, room_.shown(rank_, op_.show));
  if (op_.exchange) {
    uint64_t* row = reinterpret_cast<uint64_t*>(segment_.small(rank_, room_.seq));
    for (uint32_t r = 0; r < size_; ++r) {
      row[r] = op_.in[r].bytes;
      row[size_ + r] = op_.out[r].bytes;
    }
  }
  hello.seq.exchange(room_.seq);
  greeted_ = lagging_ = 0;
  wake_sleepers();
}

bool Comm::hellos_in() {
  for (; greeted_ < size_; ++greeted_) {
    if (greeted_ != rank_ && segment_.ctl(greeted_).hello[room_.seq & 1].seq.load() != room_.seq) return false;
  }
  return true;
}

hvd_rc Comm::compare_hellos(hvd_error* err) {
  ++moves_;
  for (uint32_t r = 0; r < size_; ++r) {
    const Hello& theirs = segment_.ctl(r).hello[room_.seq & 1];
    if (theirs.hash == op_.hash) continue;
    char here[200], there[200];
    describe(op_.words, here, sizeof here);
    describe(theirs.words, there, sizeof there);
    const bool alike = std::strcmp(here, there) == 0;
    return fail(err, HVD_E_INVALID, 0, "the ranks disagree: rank %u has %s; rank %u has %s%s", rank_, here, r, there,
                alike ? ", with other counts" : "");
  }
  if (op_.exchange) return compare_sizes(err);
  return HVD_OK;
}

// ALLTOALL: every rank checks every pair, so that all come to the same answer, and takes the longest part as extent.
hvd_rc Comm::compare_sizes(hvd_error* err) {
  const auto row = [&](uint32_t r) { return reinterpret_cast<const uint64_t*>(segment_.small(r, room_.seq)); };
  for (uint32_t from = 0; from < size_; ++from) {
    for (uint32_t to = 0; to < size_; ++to) {
      const uint64_t sent = row(from)[to], expected = row(to)[size_ + from];
      if (sent != expected) {
        return fail(err, HVD_E_INVALID, 0,
                    "alltoall: rank %u sends %" PRIu64 " bytes to rank %u, which expects %" PRIu64, from, sent, to,
                    expected);
      }
      op_.extent = std::max(op_.extent, sent);
    }
  }
  return HVD_OK;
}

bool Comm::reached(uint64_t steps) {
  if (everybody_ >= steps) return true;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < size_; ++i) {
    // The rank that was missing last time is asked first: while it is, nobody else's line is touched.
    const uint32_t r = i + lagging_ < size_ ? i + lagging_ : i + lagging_ - size_;
    if (r == rank_) continue;
    if (seen_[r] < steps) seen_[r] = segment_.ctl(r).steps.load();
    if (seen_[r] < steps) {
      lagging_ = r;
      return false;
    }
    least = std::min(least, seen_[r]);
  }
  everybody_ = least;
  return true;
}

// Spinning peers see this soon enough. That sleeping ones see it takes a full fence, which waits until all that was
// copied has left the store buffer; flush() does that once there is nothing better to do.
void Comm::publish(uint64_t steps) {
  ++moves_;
  published_ = steps;
  flushed_ = false;
  mine().steps.store(steps, std::memory_order_release);
}

void Comm::flush() {
  if (flushed_) return;
  flushed_ = true;
  mine().steps.exchange(published_);
  wake_sleepers();
}

hvd_rc Comm::advance(hvd_error* err) {
  if (phase_ == Phase::kHello) {
    if (!hellos_in()) return stalled(err);
    hvd_rc rc = compare_hellos(err);
    if (rc != HVD_OK) return end(rc);
    compared_ = true;
    if (small_) {
      op_.algorithm->get(room_, op_);
      return end(HVD_OK);
    }
    begin_chunks();
  }
  return advance_chunks(err);
}

hvd_rc Comm::advance_chunks(hvd_error* err) {
  const Algorithm& algorithm = *op_.algorithm;
  for (; iteration_ < n_chunks_ + algorithm.lag; ++iteration_, stage_ = 0) {
    const uint64_t global = first_iteration_ + iteration_;
    for (; stage_ <= algorithm.lag; ++stage_) {
      if (iteration_ < stage_ || iteration_ - stage_ >= n_chunks_) continue;
      if (stage_ == 0) {
        // All have left iteration global - kSlots + 2.
        if (global >= kSlots && !reached(3 * (global - kSlots + 3))) return stalled(err);
      } else {
        if (!compared_) {
          if (!hellos_in()) return stalled(err);
          if (const hvd_rc rc = compare_hellos(err); rc != HVD_OK) return end(rc);
          compared_ = true;
        }
        if (!reached(3 * (global - 1) + stage_)) return stalled(err);
      }
      algorithm.stage[stage_](room_, op_, iteration_ - stage_);
      // The last stage needs no word of its own: the next stage 0, or the end, tells it too.
      if (stage_ < algorithm.lag) publish(3 * global + stage_ + 1);
    }
  }
  return end(HVD_OK);
}

hvd_rc Comm::end(hvd_rc rc) {
  if (rc != HVD_OK) {
    // Ranks that disagree ran different schedules, but none beyond its second iteration: skip two, on all ranks.
    first_iteration_ += 2;
    publish(3 * first_iteration_);
  } else if (phase_ == Phase::kChunks) {
    first_iteration_ += n_chunks_ + op_.algorithm->lag;
    publish(3 * first_iteration_);
  }
  flush();
  phase_ = Phase::kDone;
  result_ = rc;
  return rc;
}

// Nothing to do now: in progress, unless the communicator has failed.
hvd_rc Comm::stalled(hvd_error* err) {
  flush();
  const uint32_t word = segment_.header().failed.load(std::memory_order_relaxed);
  return word == 0 ? HVD_INPROGRESS : report_failure(word, err);
}

hvd_rc Comm::give_up(hvd_error* err) {
  declare_failed(HVD_E_TIMEOUT);
  const uint32_t word = segment_.header().failed.load();
  if ((word & 0xff) != HVD_E_TIMEOUT || word >> 8 != rank_) return report_failure(word, err);
  char what[200];
  describe(op_.words, what, sizeof what);
  return fail(err, HVD_E_TIMEOUT, HVD_EF_COMM_DEAD,
              "the deadline passed: rank %u waited for rank %u in operation %" PRIu64 ", %s", rank_,
              greeted_ < size_ ? greeted_ : lagging_, room_.seq, what);
}

hvd_rc Comm::test(hvd_error* err) {
  if (phase_ == Phase::kDone) {
    return result_ == HVD_OK ? HVD_OK : fail(err, result_, 0, "this operation had already failed");
  }
  hvd_rc rc = advance(err);
  if (rc == HVD_INPROGRESS && deadline_ns_ != HVD_NO_DEADLINE && now_ns() >= deadline_ns_) rc = give_up(err);
  if (rc != HVD_INPROGRESS) {
    phase_ = Phase::kDone;
    result_ = rc;
  }
  return rc;
}

hvd_rc Comm::wait(int64_t deadline_ns, hvd_error* err) {
  if (phase_ == Phase::kDone) return test(err);
  const int64_t own = op_deadline(deadline_ns);
  int64_t spin_from = 0;
  uint64_t seen_moves = moves_;
  hvd_rc rc = HVD_INPROGRESS;
  for (uint32_t looks = 1; rc == HVD_INPROGRESS; ++looks) {
    if ((rc = advance(err)) != HVD_INPROGRESS) break;
    if (moves_ != seen_moves) {
      seen_moves = moves_;
      spin_from = 0;
      looks = 1;
    }
    if (looks > kEagerSpins) cpu_relax();
    if (looks % kLooksPerClock != 0 && spin_ns_ > 0) continue;
    const int64_t now = now_ns();
    if (spin_from == 0) spin_from = now;
    if (now >= deadline_ns_) {
      rc = give_up(err);
    } else if (now >= own) {
      return HVD_INPROGRESS;
    } else if (now - spin_from >= spin_ns_) {
      sleep(std::min(deadline_ns_, own), err, &rc);
    }
  }
  phase_ = Phase::kDone;
  result_ = rc;
  return rc;
}

hvd_rc Comm::free() {
  if (phase_ == Phase::kHello || phase_ == Phase::kChunks) return HVD_E_INVALID;
  phase_ = Phase::kIdle;
  return HVD_OK;
}

hvd_rc Comm::finalize(int64_t deadline_ns, hvd_error* err) {
  hvd_coll_args args = {};
  args.hdr.struct_size = sizeof args;
  args.coll = HVD_BARRIER;
  args.deadline_ns = blocking_deadline(deadline_ns, kFinalizeSeconds);
  hvd_rc rc = start(args, err);
  if (rc != HVD_INPROGRESS) return rc;
  rc = wait(HVD_NO_DEADLINE, err);
  free();
  return rc;
}

}  // namespace hvd::shm
