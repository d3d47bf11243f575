// A window: memory of every rank of a communicator that all of them map, so that they reduce between it without slots.
//
//   part of rank 0 | part of rank 1 | ...      each a multiple of a page, one memfd without a name
//
// Made with the other ranks by the thread that is inside window_create. Afterwards it belongs to the communicator, for
// its collectives, and to the host, for this rank's part, which lives until both have let go of it.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "rendezvous.h"
#include "shared.h"

namespace hvd::shm {

class Window {
 public:
  // With all ranks; waits for them. Throws NOMEM if this rank's part does not fit into memory.
  static std::shared_ptr<Window> make(const Meeting& meeting, uint64_t bytes, int64_t deadline_ns);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  char* part(uint32_t rank) const { return base_ + rank * stride_; }
  uint64_t bytes() const { return bytes_; }
  // Unmaps the other ranks' parts. No collective uses the window any more.
  void leave();

 private:
  Window() = default;
  // False in a forked child, which does not have the memory, and may have other memory at its place.
  bool is_here() const { return base_ != nullptr && getpid() == owner_; }
  void map(int fd);
  void reserve(int fd, int64_t deadline_ns);
  void take_pages(int fd, char* mine, uint64_t bytes);

  char* base_ = nullptr;
  uint64_t bytes_ = 0, stride_ = 0;
  uint32_t rank_ = 0, size_ = 0;
  bool left_ = false;
  pid_t owner_ = 0;
};

// The windows of one communicator. Numbers are given in the order of creation, hence equal on all ranks. Used by the
// thread that is inside a call on the communicator.
class Windows {
 public:
  // Where a buffer lies, as one word that the other ranks can read; kNowhere: in no window.
  static constexpr uint64_t kNowhere = UINT64_MAX;
  static constexpr uint32_t kMost = 1u << 20;  // windows that one communicator can make

  ~Windows();
  bool empty() const { return made_.empty(); }
  // The number of the next window, which counts whether or not its creation succeeds.
  uint32_t take_number();
  void add(uint32_t number, std::shared_ptr<Window> window) { made_[number] = std::move(window); }
  void remove(const Window* window);
  uint64_t place_of(uint32_t rank, const char* p, uint64_t bytes) const;
  // The memory of rank `rank` at a place that it has named; NULL if there is no such place.
  char* at(uint32_t rank, uint64_t place, uint64_t bytes) const;

 private:
  static constexpr uint32_t kOffsetBits = 44;

  std::map<uint32_t, std::shared_ptr<Window>> made_;
  uint32_t next_ = 0;
};

}  // namespace hvd::shm
