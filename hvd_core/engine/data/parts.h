// Reads a plugin::Collective: addresses, and how many elements of each buffer a rank sends and receives. The rules are
// those of hvd_coll_args. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "engine/plugin/communicator.h"

namespace hvd::data {

inline char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }
// The part of `b` that begins `skip` bytes into it.
inline hvd_buf part_of(const hvd_buf& b, uint64_t skip, uint64_t bytes) { return {b.base, b.offset + skip, bytes}; }

inline bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

// Copies all fields except the buffers and their sizes.
void copy_settings(plugin::Collective& to, const plugin::Collective& from);

// The collective `c` for buffer i alone; `ranks`: the communicator's size.
plugin::Collective single_buffer(const plugin::Collective& c, size_t i, size_t ranks);

// ALLGATHER, ALLTOALL: elements of buffer i that this rank receives from rank r. REDUCESCATTER: elements of buffer i
// that rank r receives.
uint64_t out_part(const plugin::Collective& c, size_t i, int32_t r, int32_t size);
// ALLTOALL: elements of buffer i that this rank sends to rank r.
uint64_t in_part(const plugin::Collective& c, size_t i, int32_t r, int32_t size);

// Elements of in[i] that this rank reads, and elements of out[i] that it writes.
uint64_t in_elements(const plugin::Collective& c, size_t i, int32_t rank);
uint64_t out_elements(const plugin::Collective& c, size_t i, int32_t rank, int32_t size);

}  // namespace hvd::data
