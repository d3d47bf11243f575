// How lowerings rearrange buffers, in host memory and on devices: they pack lists of buffers into one, move buffers
// that a backend does not accept, apply factors in copies, and divide buffers that are too large for one call. Used by
// the driver.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/dataplane/host_math.h"
#include "engine/dataplane/parts.h"
#include "engine/dataplane/schedule.h"
#include "engine/plugins/communicator.h"
#include "engine/plugins/device.h"

namespace hvd::dataplane {

using Copies = std::vector<plugins::Device::Copy>;

// A list of buffers, seen as one run of bytes. It does not own the memory. A value; one thread at a time.
class ByteList {
 public:
  // A buffer without memory keeps its place: it is visited, and not copied by pack() and unpack().
  void add(const hvd_buf& buffer) {
    if (buffer.bytes == 0) return;
    buffers_.push_back(buffer);
    bytes_ += buffer.bytes;
  }
  uint64_t bytes() const { return bytes_; }
  const std::vector<hvd_buf>& buffers() const { return buffers_; }
  // The bytes [at, at + bytes), or as many of them as there are.
  ByteList part(uint64_t at, uint64_t bytes) const;
  // Calls visit(buffer, bytes before it).
  template <class Visit>
  void walk(Visit visit) const {
    uint64_t before = 0;
    for (const hvd_buf& b : buffers_) {
      visit(b, before);
      before += b.bytes;
    }
  }
  // The copies to contiguous memory, and from there.
  Copies pack(const hvd_buf& packed) const;
  Copies unpack(const hvd_buf& packed) const;
  // The same at once. Host memory only, like contiguous().
  void read(char* to) const {
    walk([&](const hvd_buf& b, uint64_t offset) { std::memcpy(to + offset, address(b), b.bytes); });
  }
  void write(const char* from) const {
    walk([&](const hvd_buf& b, uint64_t offset) { std::memcpy(address(b), from + offset, b.bytes); });
  }
  // The address of the first byte if the others follow it in memory; else null.
  char* contiguous() const;

 private:
  std::vector<hvd_buf> buffers_;
  uint64_t bytes_ = 0;
};

bool misaligned(const hvd_buf& b, uint64_t alignment);
// Whether the backend accepts the addresses of all buffers.
bool all_aligned(const plugins::Collective& c, uint64_t alignment);

// Memory of a device that lives until the schedule is cleared. `kind`: HVD_MEM_DEVICE or HVD_MEM_PINNED.
hvd_buf scratch_on(Schedule& schedule, plugins::Device& device, uint64_t bytes, int32_t kind = HVD_MEM_DEVICE,
                   uint64_t alignment = plugins::Device::kAlignment);

// Adds a step that carries out copies within host memory.
void copy_on_host(Schedule& schedule, Copies copies, const char* phase = nullptr);

// A collective on other memory: its inputs are copied there first, and its results are copied back. Between a device
// and the host, or within one of them.
struct Relocated {
  plugins::Collective c;
  Copies before, after;  // never of 0 bytes
};

// `place(bytes)` returns the other memory, also for 0 bytes. `moves(buffer)`: whether a buffer is moved. Only bytes
// that `c` reads or writes are copied. A pure function.
Relocated relocate(
    const plugins::Collective& c, int32_t rank, int32_t size, const std::function<hvd_buf(uint64_t bytes)>& place,
    const std::function<bool(const hvd_buf&)>& moves = [](const hvd_buf&) { return true; });

// How many buffers of `c` have fewer than `below` bytes (and not 0), and their bytes. Equal on all ranks.
struct Small {
  size_t buffers = 0;
  uint64_t bytes = 0;
};
Small small_buffers(const plugins::Collective& c, uint64_t below);

// Adapts collectives to what a backend takes. Each function adds steps before and after those that emit(collective)
// adds. Factors of 0 and 1 change nothing.
class Packer {
 public:
  using Emit = std::function<void(const plugins::Collective&)>;

  // `device`: where the buffers are; null: in host memory, where `math` applies factors.
  Packer(int32_t rank, int32_t size, std::shared_ptr<plugins::Device> device, const HostMath* math = nullptr)
      : rank_(rank), size_(size), device_(std::move(device)), math_(math) {}

  hvd_buf scratch(Schedule& schedule, uint64_t bytes, uint64_t alignment) const;
  // Adds a step that copies elements of `dtype`, each times `factor`. `phase`: as in Schedule::compute().
  void copy(Schedule& schedule, Copies copies, int32_t dtype, double factor = 1.0, const char* phase = nullptr) const;

  // Packs the buffers of fewer than `below` bytes into `packed`, which has as many bytes as they have together. emit()
  // gets that buffer, and the other ones after it. For collectives that is_elementwise() names. Copies apply `pre` and
  // `post`; `below` is UINT64_MAX unless they are 1.
  void write_packed(Schedule& schedule, const plugins::Collective& c, uint64_t below, const hvd_buf& packed, double pre,
                    double post, const Emit& emit) const;
  // Moves misaligned buffers; all buffers if a factor has to be applied.
  void write_moved(Schedule& schedule, const plugins::Collective& c, uint64_t alignment, double pre, double post,
                   const Emit& emit) const;
  // Applies the factors that `factors` names (Abilities::Factors). emit() gets the collective without factors.
  void write_scaled(Schedule& schedule, const plugins::Collective& c, uint32_t factors, const Emit& emit) const;
  // Calls emit() with parts of a collective of one buffer, of at most `max_count` elements each. Not for ALLTOALL,
  // whose sizes only pairs of ranks know.
  void write_split(Schedule& schedule, const plugins::Collective& c, uint64_t max_count, uint64_t alignment,
                   const Emit& emit) const;
  // Whether a buffer has more elements than that.
  bool exceeds(const plugins::Collective& c, uint64_t max_count) const;

 private:
  void write_slices(Schedule& schedule, const plugins::Collective& c, uint64_t max_count, uint64_t alignment,
                    const Emit& emit) const;

  const int32_t rank_, size_;
  const std::shared_ptr<plugins::Device> device_;
  const HostMath* const math_;
};

}  // namespace hvd::dataplane
