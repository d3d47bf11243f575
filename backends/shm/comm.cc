// A communicator's life: create, abort, failure reports, sleeping and waking. Progress of operations: progress.cc.
#include "comm.h"

#include <sched.h>
#include <unistd.h>

#include <cstring>

#include "host_kernels/options.h"
#include "rendezvous.h"
#include "shared.h"
#include "wait.h"

namespace hvd::shm {
namespace {

constexpr int64_t kCreateSeconds = 120;

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

hvd_rc Comm::create(const hvd_comm_args& args, Comm** out, hvd_error* err) {
  for (int32_t r = 1; args.hosts != nullptr && r < args.size; ++r) {
    if (args.hosts[r] != args.hosts[0]) {
      return fail(err, HVD_E_INVALID, 0, "ranks 0 and %d are on different hosts; shared memory needs one host", r);
    }
  }
  std::unique_ptr<Comm> comm(new Comm(static_cast<uint32_t>(args.rank), static_cast<uint32_t>(args.size)));
  const int64_t deadline = blocking_deadline(args.deadline_ns, kCreateSeconds);
  if (args.size > 1) {
    const uint64_t per_rank = uint64_t{256} * static_cast<uint64_t>(args.size);
    const uint64_t slot = std::max(number_option("chunk_kib", 64, 4, 65536) * 1024, per_rank);
    const uint64_t small = std::max(number_option("small_kib", 8, 1, 1024) * 1024 * kCrowdedFactor, per_rank);
    int fd = -1;
    if (hvd_rc rc = exchange_segment(args, slot, small, deadline, &fd, err); rc != HVD_OK) return rc;
    hvd_rc rc = comm->segment_.map(fd, comm->rank_, comm->size_, err);
    close(fd);
    if (rc != HVD_OK) return rc;
    comm->seen_.assign(comm->size_, 0);
    comm->sources_.assign(comm->size_, nullptr);
    comm->scratch_.reset(new char[comm->segment_.small_bytes()]);
    comm->room_ = {&comm->segment_, comm->rank_, comm->size_, 0, 0, 0, comm->sources_.data(), comm->scratch_.get()};
    if ((rc = comm->attach(deadline, err)) != HVD_OK) return rc;
    if (args.rank == 0) forget_segment(args);
  }
  *out = comm.release();
  return HVD_OK;
}

hvd_rc Comm::attach(int64_t deadline_ns, hvd_error* err) {
  Header& header = segment_.header();
  add_cpus(header.cpus);
  header.attached.fetch_add(1);
  wake_everybody();
  for (;;) {
    const uint32_t ticket = mine().wake.load();
    if (const uint32_t word = header.failed.load(); word != 0) return report_failure(word, err);
    if (header.attached.load() == size_) break;
    if (now_ns() >= deadline_ns) {
      const uint32_t here = header.attached.load();
      declare_failed(HVD_E_TIMEOUT);
      return fail(err, HVD_E_TIMEOUT, HVD_EF_COMM_DEAD, "%u of %u ranks mapped the shared segment in time", here,
                  size_);
    }
    futex_wait(&mine().wake, ticket, deadline_ns);
  }
  // With a processor for each rank, spinning for a peer is cheaper than sleeping; otherwise it keeps the peer from
  // running.
  crowded_ = count_cpus(header.cpus) < size_;
  spin_ns_ = !crowded_ ? static_cast<int64_t>(number_option("spin_us", 50, 0, 1000000)) * 1000 : 0;
  return HVD_OK;
}

void Comm::wake_everybody() {
  for (uint32_t r = 0; r < size_; ++r) {
    RankCtl& ctl = segment_.ctl(r);
    ctl.wake.fetch_add(1);
    futex_wake(&ctl.wake);
  }
}

// After something was published. Pairs with sleep(): one of the two sees the other.
void Comm::wake_sleepers() {
  if (segment_.header().sleepers.load() == 0) return;
  for (uint32_t r = 0; r < size_; ++r) {
    RankCtl& ctl = segment_.ctl(r);
    if (r == rank_ || ctl.asleep.load() == 0) continue;
    ctl.wake.fetch_add(1);
    futex_wake(&ctl.wake);
  }
}

// Sleeps until something was published, the deadline, or a failure; *rc becomes what advance() last said.
void Comm::sleep(int64_t deadline_ns, hvd_error* err, hvd_rc* rc) {
  RankCtl& ctl = mine();
  Header& header = segment_.header();
  const uint32_t ticket = ctl.wake.load();
  ctl.asleep.store(1);
  header.sleepers.fetch_add(1);
  const uint64_t before = moves_;
  *rc = advance(err);
  if (*rc == HVD_INPROGRESS && moves_ == before) futex_wait(&ctl.wake, ticket, deadline_ns);
  header.sleepers.fetch_sub(1);
  ctl.asleep.store(0);
}

void Comm::declare_failed(hvd_rc code) {
  uint32_t none = 0;
  const uint32_t word = static_cast<uint32_t>(code) | rank_ << 8;
  if (size_ == 1) {
    alone_failed_.compare_exchange_strong(none, word);
    return;
  }
  segment_.header().failed.compare_exchange_strong(none, word);
  wake_everybody();
}

hvd_rc Comm::report_failure(uint32_t word, hvd_error* err) const {
  const hvd_rc code = static_cast<hvd_rc>(word & 0xff);
  const uint32_t who = word >> 8;
  if (code == HVD_E_ABORTED) {
    return fail(err, HVD_E_ABORTED, HVD_EF_COMM_DEAD, "the communicator was aborted by rank %u of it", who);
  }
  if (who == rank_) {
    return fail(err, code, HVD_EF_COMM_DEAD, "the communicator is dead since a deadline passed on this rank (%u)", who);
  }
  return fail(err, HVD_E_REMOTE, HVD_EF_COMM_DEAD, "the communicator is dead: a deadline passed on rank %u of it", who);
}

// Waits for calls from other threads that are still inside: an abort wakes this rank's thread before it is through.
Comm::~Comm() {
  while (visitors_.load() != 0) cpu_relax();
}

void Comm::abort() {
  visitors_.fetch_add(1);
  declare_failed(HVD_E_ABORTED);
  visitors_.fetch_sub(1);
}

hvd_rc Comm::async_error(hvd_error* err) const {
  visitors_.fetch_add(1);
  const hvd_rc rc = failure(err);
  visitors_.fetch_sub(1);
  return rc;
}

hvd_rc Comm::failure(hvd_error* err) const {
  const uint32_t word = size_ == 1 ? alone_failed_.load() : segment_.header().failed.load();
  return word == 0 ? HVD_OK : report_failure(word, err);
}

}  // namespace hvd::shm
