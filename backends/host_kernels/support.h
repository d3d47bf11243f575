// Small helpers that every file of the host backends needs: errors with a formatted text, names for messages, the
// clock.
//
// Any thread.
#pragma once

#include <cstdint>

#include "hvd/backend.hpp"

namespace hvd::host_kernels {

// The exception with a text made as printf makes it.
Error formatted_error(hvd_rc code, int32_t flags, const char* format, ...) __attribute__((format(printf, 3, 4)));

// Bytes of one element; 0 for a number that is not an element type.
inline uint32_t dtype_size(int32_t dtype) { return dtype >= 0 && dtype < HVD_DTYPE_COUNT ? kDtypeBytes[dtype] : 0; }
const char* dtype_name(int32_t dtype);
const char* op_name(int32_t op);
const char* coll_name(int32_t coll);

// The host's default is not known here: an operation with a deadline of 0 has no deadline, since the host can abort it.
inline int64_t op_deadline(int64_t deadline_ns) { return deadline_ns == 0 ? HVD_NO_DEADLINE : deadline_ns; }

// A create that has not returned cannot be aborted, and a finalize must not hold up the end: with a deadline of 0 both
// end after `seconds`.
inline int64_t blocking_deadline(int64_t deadline_ns, int64_t seconds) {
  return deadline_ns == 0 ? now_ns() + seconds * 1000000000 : deadline_ns;
}

}  // namespace hvd::host_kernels
