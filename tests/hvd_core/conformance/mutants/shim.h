// A backend with one fault: another backend's tables with one slot replaced. See shim.cc for how it is chosen.
//
// Faults that look into memory take it for host memory; those that only change arguments fit any backend.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hvd/backend_abi.h"

namespace mutants {

struct Tables {
  hvd_backend_api backend;
  hvd_comm_api comm;      // what is handed out
  hvd_device_api device;  // what is handed out
};

// The backend as it is, and as it is handed out.
extern const hvd_backend_api* real;
extern const hvd_host_api* host;
extern hvd_host_api our_host;  // what the backend was given: a copy of the host's, changed by some faults
extern Tables ours;

// A fault that is made before the backend is loaded (`early`) or once its tables are there.
struct Fault {
  std::function<void()> early, apply;
};
std::map<std::string, Fault>& faults();
struct Add {
  Add(const char* name, std::function<void()> apply) { faults()[name] = {nullptr, std::move(apply)}; }
  Add(const char* name, std::function<void()> early, std::function<void()> apply) {
    faults()[name] = {std::move(early), std::move(apply)};
  }
};

// What a library that is linked with -ffast-math does to the thread that loads it.
inline void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
#endif
}

inline char* at(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }

// The real collective, driven to its end. REQUEST only; what cannot start fails as it is.
inline hvd_rc complete(hvd_comm comm, const hvd_coll_args* args, hvd_error* error) {
  hvd_req request = nullptr;
  hvd_rc rc = real->comm->collective(comm, args, &request, error);
  if (rc != HVD_INPROGRESS) return rc;
  rc = real->comm->req_wait(request, HVD_NO_DEADLINE, error);
  real->comm->req_free(request);
  return rc;
}

// From the first communicator on, `world_rank` is this process's.
extern int world_rank;
inline void learn_rank() {
  ours.comm.create = [](const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    world_rank = a->ranks[a->rank];
    return real->comm->create(a, out, e);
  };
}

}  // namespace mutants
