// The ranks share a file in memory: a counter of arrivals, and two slots per rank that are used in turns. A rank holds
// a lock on one byte of the file while it lives, by which the others notice its death.
#include "ohcl.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
using Clock = std::chrono::steady_clock;
constexpr size_t kRanks = 64, kSlot = 256 << 10;

struct Shared {
  std::atomic<uint64_t> arrivals;
  std::atomic<uint64_t> asked[2][kRanks];  // by which the ranks compare their calls
};
constexpr size_t kHeader = 4096;
static_assert(sizeof(Shared) <= kHeader);
size_t length(int size) { return kHeader + 2 * static_cast<size_t>(size) * kSlot; }

bool lock(int fd, int rank, short type, int command) {
  struct flock at = {};
  at.l_type = type, at.l_start = rank, at.l_len = 1;
  return fcntl(fd, command, &at) == 0 && (command == F_OFD_SETLK || at.l_type != F_UNLCK);
}
}  // namespace

struct ohclComm {
  int fd, rank, size, failure;
  char* base;
  uint64_t turn;
  std::atomic<bool> interrupted;

  Shared* shared() const { return reinterpret_cast<Shared*>(base); }
  // The slot of a rank for the coming turn, or for the turn that has just been.
  char* slot(int r, uint64_t t) const { return base + kHeader + (2 * static_cast<size_t>(r) + t % 2) * kSlot; }
  bool lost() const {
    for (int r = 0; r < size; ++r) {
      if (r != rank && !lock(fd, r, F_WRLCK, F_OFD_GETLK)) return true;
    }
    return false;
  }
  // Waits for all ranks, which must ask for the same.
  int meet(uint64_t what, double seconds, bool joining = false) {
    if (failure != ohclSuccess) return failure;
    const auto until = Clock::now() + std::chrono::duration<double>(std::min(seconds, 1e8));
    const uint64_t all = ++turn * static_cast<uint64_t>(size);
    shared()->asked[turn % 2][rank] = what;
    shared()->arrivals.fetch_add(1);
    for (int looks = 0; shared()->arrivals.load() < all; ++looks) {
      if (interrupted) return failure = ohclInterrupted;
      if (looks < 200) {
        sched_yield();
        continue;
      }
      if (Clock::now() > until) return failure = ohclTimeout;
      if (!joining && looks % 64 == 0 && lost() && shared()->arrivals.load() < all) return failure = ohclPeerLost;
      usleep(50);
    }
    for (int r = 0; r < size; ++r) {
      if (shared()->asked[turn % 2][r] != what) return failure = ohclMismatch;
    }
    return ohclSuccess;
  }
};

const char* ohclVersion() { return "ohcl 1.0"; }

int ohclCreate(int size, char* name) {
  if (size > static_cast<int>(kRanks)) return ohclSystem;
  // Without a name in /dev/shm, which would outlive a process that dies before all have joined.
  const int fd = memfd_create("ohcl", MFD_CLOEXEC);
  if (fd < 0) return ohclSystem;
  std::snprintf(name, 64, "/proc/%d/fd/%d", getpid(), fd);
  const bool good = posix_fallocate(fd, 0, static_cast<off_t>(length(size))) == 0;
  if (!good) ohclRemove(name);
  return good ? ohclSuccess : ohclSystem;
}

void ohclRemove(const char* name) { close(std::atoi(std::strrchr(name, '/') + 1)); }

int ohclJoin(const char* name, int rank, int size, double seconds, ohclComm_t* comm) {
  const int fd = open(name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return ohclSystem;
  void* base = mmap(nullptr, length(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED || !lock(fd, rank, F_WRLCK, F_OFD_SETLK)) return close(fd), ohclSystem;
  *comm = new ohclComm{fd, rank, size, ohclSuccess, static_cast<char*>(base), 0, {false}};
  const int code = (*comm)->meet(0, seconds, true);
  if (code != ohclSuccess) ohclLeave(*comm);
  return code;
}

int ohclAllreduce(ohclComm_t c, const void* in, void* out, size_t count, size_t width, ohclCombine_t combine,
                  const void* context, double seconds) {
  for (size_t at = 0, n; at == 0 || at < count; at += n) {
    n = std::min(kSlot / width, count - at);
    std::memcpy(c->slot(c->rank, c->turn + 1), static_cast<const char*>(in) + at * width, n * width);
    if (const int code = c->meet(count * 100 + width, seconds)) return code;
    char* sum = static_cast<char*>(out) + at * width;
    std::memcpy(sum, c->slot(0, c->turn), n * width);
    for (int r = 1; r < c->size; ++r) combine(sum, c->slot(r, c->turn), n, context);
    if (n == 0) break;
  }
  return ohclSuccess;
}

int ohclBroadcast(ohclComm_t c, const void* in, void* out, size_t bytes, int root, double seconds) {
  for (size_t at = 0, n; at == 0 || at < bytes; at += n) {
    n = std::min(kSlot, bytes - at);
    if (c->rank == root) std::memcpy(c->slot(root, c->turn + 1), static_cast<const char*>(in) + at, n);
    if (const int code = c->meet(bytes * 100 + static_cast<size_t>(root) + 32, seconds)) return code;
    std::memcpy(static_cast<char*>(out) + at, c->slot(root, c->turn), n);
    if (n == 0) break;
  }
  return ohclSuccess;
}

int ohclAllgatherv(ohclComm_t c, const void* in, void* out, const size_t* bytes, double seconds) {
  const size_t most = *std::max_element(bytes, bytes + c->size);
  const auto part = [&](int r, size_t at) { return at < bytes[r] ? std::min(kSlot, bytes[r] - at) : 0; };
  for (size_t at = 0; at == 0 || at < most; at += kSlot) {
    std::memcpy(c->slot(c->rank, c->turn + 1), static_cast<const char*>(in) + at, part(c->rank, at));
    uint64_t what = 99;
    for (int r = 0; r < c->size; ++r) what = what * 1000003 + bytes[r];
    if (const int code = c->meet(what, seconds)) return code;
    char* to = static_cast<char*>(out) + at;
    for (int r = 0; r < c->size; to += bytes[r++]) std::memmove(to, c->slot(r, c->turn), part(r, at));
  }
  return ohclSuccess;
}

void ohclInterrupt(ohclComm_t c) { c->interrupted = true; }

void ohclLeave(ohclComm_t c) {
  munmap(c->base, length(c->size));
  close(c->fd);
  delete c;
}
