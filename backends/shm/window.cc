// Making, mapping and leaving a window; see window.h.
#include "window.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "segment.h"
#include "wait.h"

namespace hvd::shm {
namespace {

constexpr uint64_t kHugePage = 2 << 20;
constexpr uint64_t kPiece = 256 << 20;  // bytes that are taken between two looks at the clock

// Parts are unmapped one by one. Kernels for ARM have pages of 4, 16 or 64 KiB.
uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// The bytes that this host can still hand out, as far as the kernel tells: taking more would not fail, but make it end
// processes.
uint64_t bytes_to_be_had() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen("/proc/meminfo", "re"), fclose);
  unsigned long long available = 0, swap = 0;
  char line[128];
  while (file && fgets(line, sizeof line, file.get()) != nullptr) {
    sscanf(line, "MemAvailable: %llu kB", &available);
    sscanf(line, "SwapFree: %llu kB", &swap);
  }
  return available == 0 ? UINT64_MAX : (available + swap) * 1024;
}

Descriptor make_pages(uint64_t bytes) {
  if (const uint64_t most = bytes_to_be_had(); bytes > most) {
    throw formatted_error(HVD_E_NOMEM, 0, "%llu bytes of shared memory are more than the %llu that this host has left",
                          (unsigned long long)bytes, (unsigned long long)most);
  }
  return make_memory("hvd-window", bytes);
}

}  // namespace

std::shared_ptr<Window> Window::make(const Meeting& meeting, uint64_t bytes, int64_t deadline_ns) {
  std::shared_ptr<Window> window(new Window);
  window->rank_ = meeting.rank;
  window->size_ = meeting.size;
  window->bytes_ = bytes;
  window->stride_ = round_up(bytes == 0 ? 1 : bytes, bytes < kHugePage ? page_bytes() : kHugePage);
  const uint64_t total = window->stride_ * meeting.size;
  if (total / meeting.size != window->stride_ || total > INT64_MAX || window->stride_ < bytes) {
    throw formatted_error(HVD_E_NOMEM, 0,
                          "%llu bytes of shared memory for each of %u ranks are more than an address "
                          "space holds",
                          (unsigned long long)bytes, meeting.size);
  }
  const Descriptor memory = exchange_memory(meeting, [total] { return make_pages(total); }, deadline_ns);
  if (meeting.rank == 0) remove_invitation(meeting);
  if (!keeps_size(memory.get(), total)) {
    throw formatted_error(HVD_E_REMOTE, 0, "rank 0 passed other memory than the %llu bytes of the window",
                          (unsigned long long)total);
  }
  window->map(memory.get());
  window->reserve(memory.get(), deadline_ns);
  return window;
}

void Window::map(int fd) {
  const uint64_t total = stride_ * size_;
  void* const base = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    throw formatted_error(HVD_E_NOMEM, 0, "mapping %llu bytes of shared memory: %s", (unsigned long long)total,
                          strerror(errno));
  }
  base_ = static_cast<char*>(base);
  owner_ = getpid();
  // A forked child (a data loader's worker) would write into the gradients of its parent.
  madvise(base, total, MADV_DONTFORK);
  madvise(base, total, MADV_HUGEPAGE);  // where the administrator allows it for shared memory
}

// Takes this rank's pages now, on its own NUMA node: memory that is missing is an error here, and later a SIGBUS.
void Window::reserve(int fd, int64_t deadline_ns) {
  for (uint64_t done = 0; done < stride_;) {
    if (now_ns() >= deadline_ns)
      throw formatted_error(HVD_E_TIMEOUT, 0, "taking %llu bytes of shared memory lasted longer than the job may wait",
                            (unsigned long long)stride_);
    const uint64_t bytes = std::min(kPiece, stride_ - done);
    take_pages(fd, part(rank_) + done, bytes);
    done += bytes;
  }
}

void Window::take_pages(int fd, char* mine, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(mine, bytes, MADV_POPULATE_WRITE) == 0) return;
  const bool unknown = errno == EINVAL || errno == ENOSYS;
#else
  const bool unknown = true;
#endif
  if (unknown && fallocate(fd, 0, static_cast<off_t>(mine - base_), static_cast<off_t>(bytes)) == 0) return;
  throw formatted_error(HVD_E_NOMEM, 0, "%llu bytes of shared memory are not to be had: %s",
                        (unsigned long long)stride_, strerror(errno));
}

void Window::leave() {
  if (left_ || !is_here()) return;
  left_ = true;
  const uint64_t before = rank_ * stride_, after = (size_ - rank_ - 1) * stride_;
  if (before > 0) munmap(base_, before);
  if (after > 0) munmap(part(rank_ + 1), after);
}

Window::~Window() {
  if (!is_here()) return;
  // Other ranks may map this part still, and use it no more: its pages go now.
  madvise(part(rank_), stride_, MADV_REMOVE);
  leave();
  munmap(part(rank_), stride_);
}

Windows::~Windows() {
  for (const auto& [number, window] : made_) window->leave();
}

uint32_t Windows::take_number() {
  if (next_ == kMost) throw Error(HVD_E_UNSUPPORTED, "this communicator has made as many windows as it can number");
  return next_++;
}

void Windows::remove(const Window* window) {
  for (auto it = made_.begin(); it != made_.end(); ++it) {
    if (it->second.get() != window) continue;
    it->second->leave();
    made_.erase(it);
    return;
  }
  throw Error(HVD_E_INVALID, "the window does not belong to this communicator");
}

uint64_t Windows::place_of(uint32_t rank, const char* p, uint64_t bytes) const {
  for (const auto& [number, window] : made_) {
    const char* const part = window->part(rank);
    if (p < part || p >= part + window->bytes()) continue;
    const uint64_t offset = static_cast<uint64_t>(p - part);
    if (bytes > window->bytes() - offset || offset >> kOffsetBits != 0) return kNowhere;
    return uint64_t{number} << kOffsetBits | offset;
  }
  return kNowhere;
}

char* Windows::at(uint32_t rank, uint64_t place, uint64_t bytes) const {
  const auto it = made_.find(static_cast<uint32_t>(place >> kOffsetBits));
  if (it == made_.end()) return nullptr;
  const uint64_t offset = place & ((uint64_t{1} << kOffsetBits) - 1);
  const Window& window = *it->second;
  if (offset > window.bytes() || bytes > window.bytes() - offset) return nullptr;
  return window.part(rank) + offset;
}

}  // namespace hvd::shm
