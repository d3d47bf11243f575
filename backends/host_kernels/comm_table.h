// The communicator table: thin functions from the C ABI to a class, which let no exception out.
//
// A communicator has one operation at a time, and its request is itself. `Comm` needs create (static), start, test,
// wait, free, finalize, abort and async_error, with the meaning and the threads of the slots of those names.
#pragma once

#include <new>

#include "hvd/backend_abi.h"
#include "plan.h"
#include "support.h"

namespace hvd::host_kernels {

// Runs `body`; what it throws (only memory can run out) becomes an error.
template <class Body>
hvd_rc guarded(hvd_error* err, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(err, HVD_E_NOMEM, 0, "out of memory");
  } catch (...) {
    return fail(err, HVD_E_INTERNAL, 0, "unexpected exception");
  }
}

// What is served does not depend on the communicator: all kernels serve the same operations.
inline hvd_rc answer_query(hvd_comm, const hvd_coll_args* args, hvd_coll_caps* caps, hvd_error* err) {
  hvd_rc rc = check_struct(args, sizeof *args, sizeof *args, "hvd_coll_args", err);
  if (rc != HVD_OK) return rc;
  if (caps == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the capabilities is NULL");
  rc = guarded(err, [&] { return served(*args, err); });
  hvd_coll_caps mine = {};
  mine.support = rc == HVD_OK ? HVD_NATIVE : HVD_UNSERVED;
  mine.score = rc == HVD_OK ? 100 : 0;
  mine.alignment = 1;
  mine.max_count = rc == HVD_OK ? UINT64_MAX : 0;
  fill_struct(caps, &mine, sizeof mine);
  return HVD_OK;
}

template <class Comm>
struct CommTable {
  static Comm* comm_of(hvd_comm comm) { return reinterpret_cast<Comm*>(comm); }
  static Comm* comm_of(hvd_req req) { return reinterpret_cast<Comm*>(req); }

  static hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* err) {
    if (out == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the communicator is NULL");
    *out = nullptr;
    hvd_rc rc = check_struct(args, sizeof *args, sizeof *args, "hvd_comm_args", err);
    if (rc != HVD_OK) return rc;
    if (args->size < 1 || args->rank < 0 || args->rank >= args->size) {
      return fail(err, HVD_E_INVALID, 0, "rank %d of %d is not a rank of a communicator", args->rank, args->size);
    }
    Comm* comm = nullptr;
    rc = guarded(err, [&] { return Comm::create(*args, &comm, err); });
    *out = reinterpret_cast<hvd_comm>(comm);
    return rc;
  }

  static hvd_rc finalize(hvd_comm comm, int64_t deadline_ns, hvd_error* err) {
    return guarded(err, [&] { return comm_of(comm)->finalize(deadline_ns, err); });
  }

  static hvd_rc destroy(hvd_comm comm, hvd_error*) {
    delete comm_of(comm);
    return HVD_OK;
  }

  static hvd_rc abort_comm(hvd_comm comm, hvd_error*) {
    comm_of(comm)->abort();
    return HVD_OK;
  }

  static hvd_rc async_error(hvd_comm comm, hvd_error* err) { return comm_of(comm)->async_error(err); }

  static hvd_rc collective(hvd_comm comm, const hvd_coll_args* args, hvd_req* req, hvd_error* err) {
    if (req == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the request is NULL");
    *req = nullptr;
    hvd_rc rc = check_struct(args, sizeof *args, sizeof *args, "hvd_coll_args", err);
    if (rc != HVD_OK) return rc;
    rc = guarded(err, [&] { return comm_of(comm)->start(*args, err); });
    if (rc == HVD_INPROGRESS) *req = reinterpret_cast<hvd_req>(comm);
    return rc;
  }

  static hvd_rc req_test(hvd_req req, hvd_error* err) {
    return guarded(err, [&] { return comm_of(req)->test(err); });
  }

  static hvd_rc req_wait(hvd_req req, int64_t deadline_ns, hvd_error* err) {
    return guarded(err, [&] { return comm_of(req)->wait(deadline_ns, err); });
  }

  static hvd_rc req_free(hvd_req req) { return comm_of(req)->free(); }

  static constexpr hvd_comm_api make(uint64_t caps) {
    hvd_comm_api table = {};
    table.hdr = {sizeof(hvd_comm_api), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    table.device_types = "cpu";
    table.caps = caps;
    table.create = create;
    table.finalize = finalize;
    table.destroy = destroy;
    table.abort = abort_comm;
    table.async_error = async_error;
    table.query = answer_query;
    table.collective = collective;
    table.req_test = req_test;
    table.req_wait = req_wait;
    table.req_free = req_free;
    return table;
  }
};

}  // namespace hvd::host_kernels
