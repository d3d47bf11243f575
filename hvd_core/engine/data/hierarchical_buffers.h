// Pieces of buffers, for the files of HierarchicalTransport only.
#pragma once

#include <cstdint>

#include "hvd/backend_abi.h"

namespace hvd::data {

inline char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }
// The base may be a handle, so only the offset moves.
inline hvd_buf part(const hvd_buf& b, uint64_t at, uint64_t bytes) { return {b.base, b.offset + at, bytes}; }
inline bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

}  // namespace hvd::data
