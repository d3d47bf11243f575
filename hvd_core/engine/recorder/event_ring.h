// A ring of the last events of a rank, in memory that may outlive the process, and the texts that they name.
//
//   header (256 bytes)   RingHeader
//   counts               RingCounts, up to the offset of the texts
//   texts                at offset id: the id (4 bytes), the length (2 bytes), the bytes; in the order of arrival
//   records              the event with number n is record n % capacity
//
// Any thread may write events; one thread at a time adds texts. A reader, of this process or of another one, copies a
// record and then looks whether its stamp is still the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/operations.h"
#include "engine/recorder/event.h"

namespace hvd::recorder {

inline constexpr uint32_t kRingVersion = 1;

struct RingHeader {
  char magic[8];  // "hvdring1", written last
  uint32_t version, header_bytes, record_bytes, capacity;
  uint32_t texts_at, texts_bytes, records_at, pid;
  int32_t rank, size;
  std::atomic<uint32_t> texts_used;
  uint32_t ended;  // 1 after an orderly end
  char host[64], job[64];
  alignas(64) std::atomic<uint64_t> next;  // number of events so far
};
static_assert(sizeof(RingHeader) == 256);

// Sums since the start of the rank, for metrics: unlike events, nothing in here is ever overwritten. 64-bit counters;
// hvd_core/flight_records.py reads them.
struct RingCounts {
  static constexpr size_t kKinds = 16, kSteps = 32;
  using Count = std::atomic<uint64_t>;
  struct Kind {
    Count operations, bytes;  // submitted by this rank
  };
  struct Step {
    Count name, count;  // the text's id, 0: unused; collectives of this name that have begun
  };

  Count batches, requests;  // entries of the log that this rank carries out, and the requests in them
  Count waits, wait_ns;     // calls that had to wait, which may overlap
  Count failures;           // requests that failed
  Count stall_reports;      // on rank 0: reports about operations that only some ranks have submitted
  Count reserved[2];
  Kind kinds[kKinds];  // by number of the operation
  Step steps[kSteps];
};
static_assert(sizeof(RingCounts) == 64 + 16 * 16 + 32 * 16);
static_assert(base::kOpKinds <= RingCounts::kKinds);

class EventRing {
 public:
  // Lays the ring out in `bytes` bytes of zeros at `memory`, which the caller keeps: `capacity` records, a power of
  // two, and texts in the rest.
  EventRing(void* memory, uint64_t bytes, uint32_t capacity);
  // Bytes for so many records without texts.
  static uint64_t bytes_for(uint32_t capacity) {
    return sizeof(RingHeader) + sizeof(RingCounts) + uint64_t{capacity} * sizeof(Record);
  }

  RingHeader& header() { return *header_; }
  RingCounts& counts() { return *counts_; }
  // The ring belongs to this process from now on.
  void claim(int32_t rank, int32_t size, const std::string& host, const std::string& job);

  void write(const Event& e) {
    const uint64_t n = header_->next.fetch_add(1, std::memory_order_relaxed);
    Record& r = records_[n & mask_];
    r.stamp.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    constexpr auto relaxed = std::memory_order_relaxed;
    r.head.store(static_cast<uint32_t>(e.kind) | uint32_t{e.detail} << 8 | uint32_t{e.set} << 16, relaxed);
    r.time.store(e.time, relaxed);
    r.name.store(e.name, relaxed);
    r.what.store(e.what, relaxed);
    r.a.store(e.a, relaxed);
    r.b.store(e.b, relaxed);
    r.stamp.store(static_cast<uint32_t>(n + 1), std::memory_order_release);
  }
  // Makes a text readable; false if there is no room for it. Some room is kept for the last text: why the job ended.
  // Of two texts with one id the later one counts.
  bool add_text(uint32_t id, std::string_view text, bool last = false);

  uint64_t next() const { return header_->next.load(std::memory_order_acquire); }
  uint32_t capacity() const { return mask_ + 1; }
  enum class Read { Taken, NotYet, Lost };
  // Copies the event with this number. Lost: a later event has taken its place.
  Read read(uint64_t number, Event* e) const;

 private:
  RingHeader* header_;
  RingCounts* counts_;
  char* texts_;
  Record* records_;
  uint32_t mask_;
};

// Writes the bytes of a ring to a new file in `folder`, which is made if it is missing, together with its parent.
// Returns the path, or "" with the reason in *why. A file that is there already is kept: another rank has written it.
std::string save_ring(const void* memory, uint64_t bytes, const std::string& folder, int32_t rank, std::string* why);

// Memory that is unmapped at its end. `path`: the file behind it, or empty.
class MappedMemory {
 public:
  MappedMemory() = default;
  MappedMemory(void* at, uint64_t bytes, std::string path) : at_(at), bytes_(bytes), path_(std::move(path)) {}
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept { *this = std::move(other); }
  MappedMemory& operator=(MappedMemory&& other) noexcept;

  void* get() const { return at_; }
  const std::string& path() const { return path_; }

 private:
  void* at_ = nullptr;
  uint64_t bytes_ = 0;
  std::string path_;
};

// Memory for the ring of a rank whose host has no segment: without a neighbour there, the ring is the file itself that
// save_ring() would write, so that it outlives the process. remove_ring() removes it after an orderly end. Without a
// folder, or where the file cannot be made, the memory has no file.
void remove_ring(const std::string& path);
MappedMemory map_ring(const std::string& folder, int32_t rank, uint64_t bytes);

}  // namespace hvd::recorder
