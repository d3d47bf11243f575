// A communicator's life: create, abort, failure reports, sleeping and waking. Progress of operations: progress.cc.
#include "shm_comm.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shared.h"
#include "wait.h"

namespace hvd::shm {
namespace {

constexpr int64_t kCreateSeconds = 120;
constexpr int64_t kAttachSliceNs = 100000000;

// Adds the processors this thread may run on to the shared set.
void add_cpus(std::atomic<uint64_t>* cpus) {
  uint64_t mask[kCpuWords] = {};
  if (sched_getaffinity(0, sizeof mask, reinterpret_cast<cpu_set_t*>(mask)) < 0) return;
  for (uint32_t i = 0; i < kCpuWords; ++i) {
    if (mask[i] != 0) cpus[i].fetch_or(mask[i]);
  }
}

uint32_t count_cpus(const std::atomic<uint64_t>* cpus) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < kCpuWords; ++i) n += static_cast<uint32_t>(__builtin_popcountll(cpus[i].load()));
  return n;
}

}  // namespace

ShmComm::ShmComm(const CommInit& init) : HostComm(init) {
  for (uint32_t r = 1; r < init.hosts.size(); ++r) {
    if (init.hosts[r] != init.hosts[0]) {
      throw formatted_error(HVD_E_INVALID, 0, "ranks 0 and %u are on different hosts; shared memory needs one host", r);
    }
  }
  if (size_ == 1) return;
  const int64_t deadline = blocking_deadline(init.deadline_ns, kCreateSeconds);
  const uint64_t per_rank = uint64_t{256} * size_;
  const uint64_t slot = std::max(number_option("chunk_kib", 64, 4, 65536) * 1024, per_rank);
  const uint64_t small = std::max(number_option("small_kib", 8, 1, 1024) * 1024 * kCrowdedFactor, per_rank);
  const Meeting meeting{init.store, rank_, size_};
  const auto make = [&] { return Segment::make(size_, slot, small); };
  segment_.map(exchange_memory(meeting, make, deadline).get(), rank_, size_);
  seen_.assign(size_, 0);
  sources_.assign(size_, nullptr);
  scratch_.reset(new char[segment_.small_bytes()]);
  view_ = {&segment_, rank_, size_, 0, 0, 0, sources_.data(), scratch_.get()};
  attach(meeting, deadline);
  if (rank_ == 0) remove_invitation(meeting);
}

void ShmComm::attach(const Meeting& meeting, int64_t deadline_ns) {
  Header& header = segment_.header();
  add_cpus(header.cpus);
  header.attached.fetch_add(1);
  wake_all_ranks();
  for (;;) {
    const uint32_t ticket = mine().wake.load();
    if (const uint32_t word = header.failed.load(); word != 0) throw_failure(word);
    if (header.attached.load() == size_) break;
    if (now_ns() >= deadline_ns) {
      const uint32_t attached = header.attached.load();
      declare_failed(HVD_E_TIMEOUT);
      throw formatted_error(HVD_E_TIMEOUT, HVD_EF_COMM_DEAD, "%u of %u ranks mapped the shared segment in time",
                            attached, size_);
    }
    const int64_t until = std::min(deadline_ns, now_ns() + kAttachSliceNs);
    futex_wait(&mine().wake, ticket, until);
    if (now_ns() >= until) check_wanted(meeting);
  }
  // With a processor for each rank, spinning for a peer is cheaper than sleeping; otherwise it keeps the peer from
  // running.
  crowded_ = count_cpus(header.cpus) < size_;
  spin_ns_ = !crowded_ ? static_cast<int64_t>(number_option("spin_us", 50, 0, 1000000)) * 1000 : 0;
}

void ShmComm::wake_all_ranks() {
  for (uint32_t r = 0; r < size_; ++r) {
    RankCtl& ctl = segment_.ctl(r);
    ctl.wake.fetch_add(1);
    futex_wake(&ctl.wake);
  }
}

// After something was published. Pairs with sleep(): one of the two sees the other.
void ShmComm::wake_sleepers() {
  if (segment_.header().sleepers.load() == 0) return;
  for (uint32_t r = 0; r < size_; ++r) {
    RankCtl& ctl = segment_.ctl(r);
    if (r == rank_ || ctl.asleep.load() == 0) continue;
    ctl.wake.fetch_add(1);
    futex_wake(&ctl.wake);
  }
}

// Sleeps until something was published, the deadline, or a failure. True when the collective is complete.
bool ShmComm::sleep(int64_t deadline_ns) {
  RankCtl& ctl = mine();
  Header& header = segment_.header();
  const uint32_t ticket = ctl.wake.load();
  // Marks this rank as asleep, also if advance() throws.
  struct Asleep {
    RankCtl& ctl;
    Header& header;
    Asleep(RankCtl& ctl, Header& header) : ctl(ctl), header(header) {
      ctl.asleep.store(1);
      header.sleepers.fetch_add(1);
    }
    ~Asleep() {
      header.sleepers.fetch_sub(1);
      ctl.asleep.store(0);
    }
  } const asleep(ctl, header);
  const uint64_t before = moves_;
  const bool complete = advance();
  if (leave_until_ns_ != 0) deadline_ns = std::min(deadline_ns, leave_until_ns_);
  if (!complete && moves_ == before) futex_wait(&ctl.wake, ticket, deadline_ns);
  return complete;
}

void ShmComm::declare_failed(hvd_rc code) {
  uint32_t none = 0;
  const uint32_t word = static_cast<uint32_t>(code) | rank_ << 8;
  if (size_ == 1) {
    alone_failed_.compare_exchange_strong(none, word);
    return;
  }
  segment_.header().failed.compare_exchange_strong(none, word);
  wake_all_ranks();
}

void ShmComm::throw_failure(uint32_t word) const {
  const hvd_rc code = static_cast<hvd_rc>(word & 0xff);
  const uint32_t rank = word >> 8;
  if (code == HVD_E_ABORTED) {
    throw formatted_error(HVD_E_ABORTED, HVD_EF_COMM_DEAD, "the communicator was aborted by rank %u of it", rank);
  }
  if (rank == rank_) {
    throw formatted_error(code, HVD_EF_COMM_DEAD, "the communicator is dead since a deadline passed on this rank (%u)",
                          rank);
  }
  throw formatted_error(HVD_E_REMOTE, HVD_EF_COMM_DEAD, "the communicator is dead: a deadline passed on rank %u of it",
                        rank);
}

// Waits for calls from other threads that are still inside: an abort wakes this rank's thread before the abort returns.
ShmComm::~ShmComm() {
  while (calls_inside_.load() != 0) cpu_relax();
}

// The number counts on every rank that is asked, also if the creation fails there.
hvd_window ShmComm::window_create(const WindowInit& init, hvd_buf* part) {
  check_failure();
  if (init.memory.base != nullptr) {
    throw Error(HVD_E_UNSUPPORTED, "other ranks cannot map memory that exists already; this backend allocates windows");
  }
  if (size_ == 1) throw Error(HVD_E_UNSUPPORTED, "a communicator of one rank has no use for windows");
  const uint32_t number = windows_.take_number();
  const Meeting meeting{init.store, rank_, size_};
  auto window = Window::make(meeting, init.memory.bytes, blocking_deadline(init.deadline_ns, kCreateSeconds));
  *part = {window->part(rank_), 0, window->bytes()};
  auto handle = std::make_unique<std::shared_ptr<Window>>(window);
  windows_.add(number, std::move(window));
  return reinterpret_cast<hvd_window>(handle.release());
}

// Local: a collective is complete on a rank when no rank uses that rank's buffers any more.
void ShmComm::window_destroy(hvd_window window, int64_t) {
  windows_.remove(reinterpret_cast<std::shared_ptr<Window>*>(window)->get());
}

void ShmComm::window_free(hvd_window window) { delete reinterpret_cast<std::shared_ptr<Window>*>(window); }

std::atomic<uint64_t> ShmComm::in_place_{0};

std::string ShmComm::info(const std::string& key) { return key == "in_place" ? std::to_string(in_place_.load()) : ""; }

void ShmComm::abort() {
  const CountedCall inside(calls_inside_);
  declare_failed(HVD_E_ABORTED);
}

void ShmComm::async_error() const {
  const CountedCall inside(calls_inside_);
  check_failure();
}

void ShmComm::check_failure() const {
  const uint32_t word = size_ == 1 ? alone_failed_.load() : segment_.header().failed.load();
  if (word != 0) throw_failure(word);
}

}  // namespace hvd::shm
