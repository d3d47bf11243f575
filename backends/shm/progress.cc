// The progress of a communicator's collective. The rules that make it safe are in shm_comm.h.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "shared.h"
#include "shm_comm.h"
#include "wait.h"

namespace hvd::shm {
namespace {

constexpr uint64_t kLeastChunk = 32768;
constexpr uint64_t kMostPart = uint64_t{1} << 48;  // bytes that one rank sends to another: no address space has more
constexpr uint32_t kEagerSpins = 200;              // before each further look is preceded by a pause
constexpr uint32_t kLooksPerClock = 64;
constexpr int64_t kLeaveNs = 200'000'000;  // for which a failed rank waits for the others to end their reductions

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

void ShmComm::begin(const hvd_coll_args& args) {
  algorithm_ = algorithm_of(args.coll);
  ++view_.seq;
  deadline_ns_ = op_deadline(args.deadline_ns);
  n_chunks_ = 0;
  compared_ = false;
  choose_sizes();
  offered_ = !small_ && direct_.offer(windows_, rank_, collective_, segment_.small_bytes() / sizeof(uint64_t));
  post_hello();
  if (small_ || collective_.exchange || offered_) {
    phase_ = Phase::kHello;
  } else {
    begin_chunks();
  }
}

// All ranks read all data of a one-hop operation, so its limit falls with the number of ranks.
void ShmComm::choose_sizes() {
  const uint64_t capacity = segment_.small_bytes();
  const uint64_t limit = crowded_ ? capacity : std::max<uint64_t>(2 * (capacity / kCrowdedFactor) / size_, 4096);
  small_ = !collective_.exchange && collective_.show <= std::min(limit, capacity);
}

// Some chunks, so that the stages of different ranks overlap, but none so small that the hand-overs dominate.
void ShmComm::begin_chunks() {
  const uint64_t unit = 64 * uint64_t{size_};
  const uint64_t total = algorithm_->sliced ? collective_.extent * size_ : collective_.extent;
  const uint64_t most = segment_.slot_bytes() / unit * unit;
  const uint64_t wanted = std::min(most, (std::max<uint64_t>(total / 8, kLeastChunk) + unit - 1) / unit * unit);
  n_chunks_ = (total + wanted - 1) / wanted;
  // Of nearly one size: a short last chunk costs as many hand-overs as a full one.
  if (n_chunks_ > 0) view_.chunk_bytes = ((total + n_chunks_ - 1) / n_chunks_ + unit - 1) / unit * unit;
  view_.chunk_base = first_iteration_;
  iteration_ = 0;
  stage_ = 0;
  phase_ = Phase::kChunks;
}

void ShmComm::post_hello() {
  Hello& hello = mine().hello[view_.seq & 1];
  hello.hash = collective_.hash;
  std::memcpy(hello.words, collective_.words, sizeof collective_.words);
  if (small_) {
    algorithm_->put(view_, collective_, view_.shown(rank_, collective_.show));
  } else {
    hello.payload[0] = offered_;
    if (offered_) direct_.show(reinterpret_cast<uint64_t*>(segment_.small(rank_, view_.seq)));
  }
  if (collective_.exchange) {
    uint64_t* row = reinterpret_cast<uint64_t*>(segment_.small(rank_, view_.seq));
    for (uint32_t r = 0; r < size_; ++r) {
      row[r] = collective_.in[r].bytes;
      row[size_ + r] = collective_.out[r].bytes;
    }
  }
  hello.seq.exchange(view_.seq);
  greeted_ = lagging_ = 0;
  wake_sleepers();
}

bool ShmComm::all_hellos_posted() {
  for (; greeted_ < size_; ++greeted_) {
    if (greeted_ != rank_ && segment_.ctl(greeted_).hello[view_.seq & 1].seq.load() != view_.seq) return false;
  }
  return true;
}

// Whether all ranks reduce in place. Once all Hellos are posted, and this rank has offered it itself.
bool ShmComm::all_offer() {
  for (uint32_t r = 0; r < size_; ++r) {
    if (segment_.ctl(r).hello[view_.seq & 1].payload[0] == 0) return false;
  }
  return true;
}

void ShmComm::begin_direct() {
  places_.resize(size_);
  for (uint32_t r = 0; r < size_; ++r) {
    places_[r] = reinterpret_cast<const uint64_t*>(segment_.small(r, view_.seq));
  }
  direct_.begin(windows_, rank_, size_, collective_, places_);
  iteration_ = 0;
  phase_ = Phase::kDirect;
}

bool ShmComm::advance_direct() {
  const uint64_t end_of_it = 3 * (first_iteration_ + 1);
  const std::atomic<uint32_t>& failed = segment_.header().failed;
  while (iteration_ == 0 && failed.load(std::memory_order_relaxed) == 0) {
    if (direct_.advance(collective_)) {
      publish(end_of_it);
      iteration_ = 1;
    }
    ++moves_;
  }
  if (iteration_ == 0 || !reached(end_of_it)) {
    flush();
    const uint32_t word = failed.load();
    return word != 0 && leave_direct(word);
  }
  ++first_iteration_;
  flush();
  in_place_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// The other ranks write into this rank's tensors: the failure is reported when they have seen it too. A rank that does
// not say so in time has died, or is stopped; then it may still write one piece (direct.cc, kAtOnce) when it goes on.
bool ShmComm::leave_direct(uint32_t word) {
  write_no_more();
  if (leave_until_ns_ == 0) leave_until_ns_ = now_ns() + kLeaveNs;
  const uint64_t end_of_it = 3 * (first_iteration_ + 1);
  for (uint32_t r = 0; r < size_; ++r) {
    const RankCtl& other = segment_.ctl(r);
    const bool writes = other.writes_no_more.load() == 0 && other.steps.load() < end_of_it;
    if (r != rank_ && writes && now_ns() < leave_until_ns_) return false;
  }
  throw_failure(word);
}

void ShmComm::compare_hellos() {
  ++moves_;
  for (uint32_t r = 0; r < size_; ++r) {
    const Hello& theirs = segment_.ctl(r).hello[view_.seq & 1];
    if (theirs.hash == collective_.hash) continue;
    char here[200], there[200];
    describe(collective_.words, here, sizeof here);
    describe(theirs.words, there, sizeof there);
    const bool alike = std::strcmp(here, there) == 0;
    throw formatted_error(HVD_E_INVALID, 0, "the ranks disagree: rank %u has %s; rank %u has %s%s", rank_, here, r,
                          there, alike ? ", with other counts" : "");
  }
  if (collective_.exchange) compare_sizes();
}

// ALLTOALL: every rank checks every pair, so that all come to the same answer, and takes the longest part as extent.
// Sizes of other pairs may be wrong; what this rank reads and writes follows from its own.
void ShmComm::compare_sizes() {
  const auto row = [&](uint32_t r) { return reinterpret_cast<const uint64_t*>(segment_.small(r, view_.seq)); };
  for (uint32_t from = 0; from < size_; ++from) {
    for (uint32_t to = 0; to < size_; ++to) {
      const uint64_t sent = row(from)[to], expected = row(to)[size_ + from];
      if (sent != expected) {
        throw formatted_error(HVD_E_INVALID, 0,
                              "alltoall: rank %u sends %" PRIu64 " bytes to rank %u, which expects %" PRIu64, from,
                              sent, to, expected);
      }
      if (sent > kMostPart) {
        throw formatted_error(HVD_E_INVALID, 0, "alltoall: rank %u sends %" PRIu64 " bytes to rank %u, which is absurd",
                              from, sent, to);
      }
      collective_.extent = std::max(collective_.extent, sent);
    }
  }
}

bool ShmComm::reached(uint64_t steps) {
  if (least_seen_ >= steps) return true;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < size_; ++i) {
    // The rank that was missing last time is asked first: while it is missing, no other rank's line is touched.
    const uint32_t r = i + lagging_ < size_ ? i + lagging_ : i + lagging_ - size_;
    if (r == rank_) continue;
    if (seen_[r] < steps) seen_[r] = segment_.ctl(r).steps.load();
    if (seen_[r] < steps) {
      lagging_ = r;
      return false;
    }
    least = std::min(least, seen_[r]);
  }
  least_seen_ = least;
  return true;
}

// Spinning peers see this soon enough. That sleeping ones see it takes a full fence, which waits until all that was
// copied has left the store buffer; flush() does that once there is nothing better to do.
void ShmComm::publish(uint64_t steps) {
  ++moves_;
  published_ = steps;
  flushed_ = false;
  mine().steps.store(steps, std::memory_order_release);
}

void ShmComm::flush() {
  if (flushed_) return;
  flushed_ = true;
  mine().steps.exchange(published_);
  wake_sleepers();
}

// Throws if the ranks disagree. All ranks then skip the same part of the schedule and can go on.
void ShmComm::compare_all() {
  try {
    compare_hellos();
  } catch (...) {
    end(false);
    throw;
  }
  compared_ = true;
}

bool ShmComm::advance() {
  if (phase_ == Phase::kHello) {
    if (!all_hellos_posted()) return stalled();
    compare_all();
    if (small_) {
      algorithm_->get(view_, collective_);
      end(true);
      return true;
    }
    offered_&& all_offer() ? begin_direct() : begin_chunks();
  }
  return phase_ == Phase::kDirect ? advance_direct() : advance_chunks();
}

bool ShmComm::advance_chunks() {
  const Algorithm& algorithm = *algorithm_;
  for (; iteration_ < n_chunks_ + algorithm.lag; ++iteration_, stage_ = 0) {
    const uint64_t global = first_iteration_ + iteration_;
    for (; stage_ <= algorithm.lag; ++stage_) {
      if (iteration_ < stage_ || iteration_ - stage_ >= n_chunks_) continue;
      if (stage_ == 0) {
        // All ranks have left iteration global - kSlots + 2.
        if (global >= kSlots && !reached(3 * (global - kSlots + 3))) return stalled();
      } else {
        if (!compared_) {
          if (!all_hellos_posted()) return stalled();
          compare_all();
        }
        if (!reached(3 * (global - 1) + stage_)) return stalled();
      }
      algorithm.stage[stage_](view_, collective_, iteration_ - stage_);
      // The last stage needs no publication of its own: the next stage 0, or the end, publishes it too.
      if (stage_ < algorithm.lag) publish(3 * global + stage_ + 1);
    }
  }
  end(true);
  return true;
}

void ShmComm::end(bool agreed) {
  if (!agreed) {
    // Ranks that disagree ran different schedules, but none beyond its second iteration: skip two, on all ranks.
    first_iteration_ += 2;
    publish(3 * first_iteration_);
  } else if (phase_ == Phase::kChunks) {
    first_iteration_ += n_chunks_ + algorithm_->lag;
    publish(3 * first_iteration_);
  }
  flush();
}

// Nothing to do now: in progress (false), unless the communicator has failed.
bool ShmComm::stalled() {
  flush();
  const uint32_t word = segment_.header().failed.load(std::memory_order_relaxed);
  if (word == 0) return false;
  write_no_more();
  throw_failure(word);
}

void ShmComm::write_no_more() {
  mine().writes_no_more.store(1);
  wake_sleepers();
}

void ShmComm::give_up() {
  declare_failed(HVD_E_TIMEOUT);
  write_no_more();
  const uint32_t word = segment_.header().failed.load();
  if ((word & 0xff) != HVD_E_TIMEOUT || word >> 8 != rank_) throw_failure(word);
  char what[200];
  describe(collective_.words, what, sizeof what);
  throw formatted_error(HVD_E_TIMEOUT, HVD_EF_COMM_DEAD,
                        "the deadline passed: rank %u waited for rank %u in operation %" PRIu64 ", %s", rank_,
                        greeted_ < size_ ? greeted_ : lagging_, view_.seq, what);
}

bool ShmComm::test_collective() {
  if (advance()) return true;
  // The clock costs as much as the test itself.
  if (deadline_ns_ != HVD_NO_DEADLINE && ++tests_ % kLooksPerClock == 0 && now_ns() >= deadline_ns_) give_up();
  return false;
}

bool ShmComm::wait_for_collective(int64_t deadline_ns) {
  int64_t spin_from = 0;
  uint64_t seen_moves = moves_;
  for (uint32_t looks = 1;; ++looks) {
    if (advance()) return true;
    if (moves_ != seen_moves) {
      seen_moves = moves_;
      spin_from = 0;
      looks = 1;
    }
    if (looks > kEagerSpins) cpu_relax();
    if (looks % kLooksPerClock != 0 && spin_ns_ > 0) continue;
    const int64_t now = now_ns();
    if (spin_from == 0) spin_from = now;
    if (now >= deadline_ns_) give_up();
    if (now >= deadline_ns) return false;
    if (now - spin_from >= spin_ns_ && sleep(std::min(deadline_ns_, deadline_ns))) return true;
  }
}

}  // namespace hvd::shm
