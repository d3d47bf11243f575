// Copies buffers at addresses that a backend does not accept through aligned scratch memory. Used by the driver.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/dataplane/schedule.h"
#include "engine/plugins/communicator.h"
#include "engine/plugins/device.h"

namespace hvd::dataplane {

bool misaligned(const hvd_buf& b, uint32_t alignment);

// Scratch memory at a multiple of `alignment`, a power of two of any size.
char* aligned_scratch(Schedule& schedule, uint64_t bytes, uint32_t alignment);

// Calls write(collective) with `c` on aligned buffers, and adds steps before and after it that copy misaligned buffers.
// Ranks may differ in which buffers are misaligned: copies change no collective.
void write_aligned(Schedule& schedule, const plugins::Collective& c, uint32_t alignment, int32_t rank, int32_t size,
                   const std::function<void(const plugins::Collective&)>& write);

// A collective on other memory: its inputs are copied there first, and its results are copied back. Between a device
// and the host, or within a device. Pure functions, any thread.

struct Relocated {
  plugins::Collective c;
  std::vector<plugins::Device::Copy> before, after;  // never of 0 bytes
};

// `place(bytes)` returns the other memory, also for 0 bytes. Only bytes that `c` reads or writes are copied.
Relocated relocate(const plugins::Collective& c, int32_t rank, int32_t size,
                   const std::function<hvd_buf(uint64_t bytes)>& place);

// Divides one allocation into aligned parts: add() the size of each part, allocate total() bytes, begin() with that
// memory, then place() the parts in the same order.
class Area {
 public:
  explicit Area(uint64_t alignment = plugins::Device::kAlignment) : alignment_(alignment) {}
  uint64_t total() const { return at_; }
  hvd_buf add(uint64_t bytes) {
    at_ += (bytes + alignment_ - 1) / alignment_ * alignment_;
    return {};
  }
  void begin(const hvd_buf& area) {
    area_ = area;
    at_ = 0;
  }
  hvd_buf place(uint64_t bytes) {
    const hvd_buf part{area_.base, area_.offset + at_, bytes};
    add(bytes);
    return part;
  }

 private:
  const uint64_t alignment_;
  hvd_buf area_{};
  uint64_t at_ = 0;
};

}  // namespace hvd::dataplane
