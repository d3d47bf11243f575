// Small things every file of this backend needs: the host, error reports, element types, the clock.
//
// Any thread. The host API pointer is the one piece of process-wide state; entry sets it once, before any other call.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>

#include "hvd/backend_abi.h"

namespace hvd::host_kernels {

// The host's table, as handed to hvd_backend_entry_v1; NULL before.
const hvd_host_api* host();
void set_host(const hvd_host_api* api);

// Fills *err (which may be NULL or older than this header, then shorter) and returns `code`.
hvd_rc fail(hvd_error* err, hvd_rc code, int32_t flags, const char* format, ...) __attribute__((format(printf, 4, 5)));

// HVD_OK when `hdr` begins a struct that holds at least `minimum` bytes and nothing set beyond the `known` ones.
hvd_rc check_struct(const void* hdr, size_t minimum, size_t known, const char* name, hvd_error* err);

// Copies `from` into the caller's out-struct, at most as much as the caller has room for.
void fill_struct(void* to, const void* from, size_t size);

// Bytes of one element; 0 for a number that is no dtype.
uint32_t dtype_size(int32_t dtype);
const char* dtype_name(int32_t dtype);
const char* op_name(int32_t op);
const char* coll_name(int32_t coll);

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// The host's default is not known here, so a deadline of 0 is none for an operation whose caller can abort it.
inline int64_t op_deadline(int64_t deadline_ns) { return deadline_ns == 0 ? HVD_NO_DEADLINE : deadline_ns; }

// Nobody can abort a create that has not returned yet, and a finalize is a courtesy: those end by themselves.
inline int64_t blocking_deadline(int64_t deadline_ns, int64_t seconds) {
  return deadline_ns == 0 ? now_ns() + seconds * 1000000000 : deadline_ns;
}

}  // namespace hvd::host_kernels
