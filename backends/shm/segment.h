// The shared segment of one communicator: its layout, making it, mapping it. Nothing here waits.
//
//   Header | RankCtl x size | for each rank: small area x 2, slot x kSlots
//
// A rank writes its own RankCtl and its own areas only, except for `wake` (any rank may write it, to wake its owner)
// and the Header's words. Data is published by a release store of `Hello::seq` or `RankCtl::steps` and read after the
// matching acquire load. The memory belongs to a memfd that has no name anywhere: it dies with its last mapping.
#pragma once

#include <atomic>
#include <cstdint>

#include "host_kernels/descriptor.h"
#include "shared.h"

namespace hvd::shm {

constexpr uint32_t kSlots = 8;      // chunks of a large operation that a rank may have in the segment
constexpr uint64_t kInline = 48;    // payload bytes that travel in the same cache line as the announcement
constexpr uint32_t kCpuWords = 64;  // processors 0..4095

inline uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// "I am in operation `seq`, which is `hash`": posted by every rank for every operation, two in turn.
struct alignas(128) Hello {
  std::atomic<uint64_t> seq;
  uint64_t hash;
  unsigned char payload[kInline];
  uint64_t words[8];  // what the operation is, for the message when ranks disagree
};

struct RankCtl {
  alignas(128) std::atomic<uint64_t> steps;  // monotonic over the communicator's life; see shm_comm.h
  alignas(128) std::atomic<uint32_t> wake;   // futex word
  std::atomic<uint32_t> asleep;              // 1 while this rank sleeps, or is about to, on `wake`
  std::atomic<uint32_t> writes_no_more;      // 1 when a failure has ended this rank's last reduction in place
  Hello hello[2];
};

// What the segment is, written before it is passed on.
struct Identity {
  uint64_t magic;
  uint32_t layout, size;
  uint64_t slot_bytes, small_bytes, total_bytes;
};

struct Header {
  Identity identity;
  alignas(128) std::atomic<uint32_t> failed;  // 0, or code | rank << 8: the communicator is dead, and who said so
  alignas(128) std::atomic<uint32_t> sleepers;
  alignas(128) std::atomic<uint32_t> attached;
  std::atomic<uint64_t> cpus[kCpuWords];  // union of the ranks' affinity masks
};

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // A new memfd with an initialised header for `size` ranks, closed on exec.
  static Descriptor make(uint32_t size, uint64_t slot_bytes, uint64_t small_bytes);

  // Maps it as rank `rank` of `size`. Does not keep the descriptor.
  void map(int fd, uint32_t rank, uint32_t size);

  Header& header() const { return *header_; }
  RankCtl& ctl(uint32_t rank) const { return ctl_[rank]; }
  char* small(uint32_t rank, uint64_t seq) const { return area(rank) + (seq & 1) * small_bytes_; }
  char* slot(uint32_t rank, uint64_t chunk) const {
    return area(rank) + 2 * small_bytes_ + (chunk % kSlots) * slot_bytes_;
  }
  uint64_t slot_bytes() const { return slot_bytes_; }
  uint64_t small_bytes() const { return small_bytes_; }

 private:
  char* area(uint32_t rank) const { return areas_ + rank * area_bytes_; }

  void* base_ = nullptr;
  Header* header_ = nullptr;
  RankCtl* ctl_ = nullptr;
  char* areas_ = nullptr;
  uint64_t area_bytes_ = 0, slot_bytes_ = 0, small_bytes_ = 0, total_ = 0;
};

// New memory without a name, closed on exec and sealed, so that no rank can shrink it under the others' feet (they
// would die of SIGBUS).
Descriptor make_memory(const char* label, uint64_t bytes);
// Whether this memory has a size for good. Rank 0 passes it to the other ranks, which would die of SIGBUS without.
bool keeps_size(int fd, uint64_t bytes);

// Whether a call has failed because this process, or the host, has as many open files as it may have; its error.
bool out_of_descriptors(int error);
Error no_descriptor_left();

}  // namespace hvd::shm
