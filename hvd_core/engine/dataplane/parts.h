// Reads a plugins::Collective: addresses, and how many elements of each buffer a rank sends and receives. The rules are
// those of hvd_coll_args. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/plugins/communicator.h"

namespace hvd::dataplane {

inline char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }
// The part of `b` that begins `skip` bytes into it.
inline hvd_buf part_of(const hvd_buf& b, uint64_t skip, uint64_t bytes) { return {b.base, b.offset + skip, bytes}; }

inline bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

// The collective `c` for buffer i alone; `ranks`: the communicator's size.
plugins::Collective single_buffer(const plugins::Collective& c, size_t i, size_t ranks);

// ALLGATHER, ALLTOALL: elements of buffer i that this rank receives from rank r. REDUCESCATTER: elements of buffer i
// that rank r receives.
uint64_t out_part(const plugins::Collective& c, size_t i, int32_t r, int32_t size);
// ALLTOALL: elements of buffer i that this rank sends to rank r.
uint64_t in_part(const plugins::Collective& c, size_t i, int32_t r, int32_t size);

// Elements of in[i] that this rank reads, and elements of out[i] that it writes.
uint64_t in_elements(const plugins::Collective& c, size_t i, int32_t rank);
uint64_t out_elements(const plugins::Collective& c, size_t i, int32_t rank, int32_t size);

// A list of memory blocks, seen as one run of bytes, for algorithms that only move the bytes of a list of buffers. It
// does not own the memory. A value; one thread at a time.

class ByteList {
 public:
  void add(char* p, uint64_t bytes) {
    if (bytes == 0) return;
    blocks_.push_back({p, total_, bytes});
    total_ += bytes;
  }
  uint64_t bytes() const { return total_; }

  // Calls visit(address, offset from `at`, bytes) for each contiguous part of [at, at + bytes).
  template <class Visit>
  void walk(uint64_t at, uint64_t bytes, Visit visit) const {
    auto it = std::upper_bound(blocks_.begin(), blocks_.end(), at,
                               [](uint64_t value, const Block& p) { return value < p.start; });
    for (uint64_t done = 0; done < bytes; ++it) {
      const Block& p = *(it - 1);
      const uint64_t skip = at + done - p.start, n = std::min(p.bytes - skip, bytes - done);
      visit(p.p + skip, done, n);
      done += n;
    }
  }
  void read(uint64_t at, uint64_t bytes, char* to) const {
    walk(at, bytes, [&](const char* p, uint64_t offset, uint64_t n) { std::memcpy(to + offset, p, n); });
  }
  void write(uint64_t at, uint64_t bytes, const char* from) const {
    walk(at, bytes, [&](char* p, uint64_t offset, uint64_t n) { std::memcpy(p, from + offset, n); });
  }
  // The address of [at, at + bytes); null if that range lies in several blocks.
  char* contiguous(uint64_t at, uint64_t bytes) const {
    char* found = nullptr;
    walk(at, bytes, [&](char* p, uint64_t offset, uint64_t n) { found = offset == 0 && n == bytes ? p : nullptr; });
    return found;
  }

 private:
  struct Block {
    char* p;
    uint64_t start, bytes;
  };
  std::vector<Block> blocks_;
  uint64_t total_ = 0;
};

}  // namespace hvd::dataplane
