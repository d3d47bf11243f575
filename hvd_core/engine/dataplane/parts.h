// Reads a plugins::Collective: addresses, and how many elements of each buffer a rank sends and receives. The rules are
// those of hvd_coll_args. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plugins/communicator.h"

namespace hvd::dataplane {

inline char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }
// The part of `b` that begins `skip` bytes into it.
inline hvd_buf part_of(const hvd_buf& b, uint64_t skip, uint64_t bytes) { return {b.base, b.offset + skip, bytes}; }

// The same; no memory stays no memory.
inline hvd_buf part_or_null(const hvd_buf& b, uint64_t skip, uint64_t bytes) {
  return b.base ? part_of(b, skip, bytes) : hvd_buf{};
}

inline bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

// Whether element k of the results depends on element k of the inputs alone, so that lists of buffers can be packed and
// divided anywhere.
inline bool is_elementwise(int32_t coll) {
  return coll == HVD_ALLREDUCE || coll == HVD_REDUCE || coll == HVD_BROADCAST;
}

// Elements of all buffers of `c`, and their bytes.
uint64_t total_elements(const plugins::Collective& c);
uint64_t total_bytes(const plugins::Collective& c);

// Elements [at, at + n) of the list of buffers of `c`, for collectives that is_elementwise() names. Buffers without
// elements are left out.
plugins::Collective elements_of(const plugins::Collective& c, uint64_t at, uint64_t n);

// The collective `c` for buffer i alone; `ranks`: the communicator's size.
plugins::Collective single_buffer(const plugins::Collective& c, size_t i, size_t ranks);

// ALLGATHER, ALLTOALL: elements of buffer i that this rank receives from rank r. REDUCESCATTER: elements of buffer i
// that rank r receives.
uint64_t out_part(const plugins::Collective& c, size_t i, int32_t r, int32_t size);
// The sum of out_part() of the ranks before r: where the part begins.
uint64_t out_start(const plugins::Collective& c, size_t i, int32_t r, int32_t size);
// ALLTOALL: elements of buffer i that this rank sends to rank r.
uint64_t in_part(const plugins::Collective& c, size_t i, int32_t r, int32_t size);

// Elements of in[i] that this rank reads, and elements of out[i] that it writes.
uint64_t in_elements(const plugins::Collective& c, size_t i, int32_t rank);
uint64_t out_elements(const plugins::Collective& c, size_t i, int32_t rank, int32_t size);

}  // namespace hvd::dataplane
