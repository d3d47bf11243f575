// The communicator table: thin functions from the C ABI to Comm, which let no exception out.
#include <new>

#include "backend.h"
#include "comm.h"
#include "support.h"

namespace hvd::shm {
namespace {

Comm* comm_of(hvd_comm comm) { return reinterpret_cast<Comm*>(comm); }
Comm* comm_of(hvd_req req) { return reinterpret_cast<Comm*>(req); }  // a communicator's one request is itself

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

hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* err) {
  if (out == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the communicator is NULL");
  *out = nullptr;
  hvd_rc rc = check_struct(args, sizeof *args, sizeof *args, "hvd_comm_args", err);
  if (rc != HVD_OK) return rc;
  Comm* comm = nullptr;
  rc = guarded(err, [&] { return Comm::create(*args, &comm, err); });
  *out = reinterpret_cast<hvd_comm>(comm);
  return rc;
}

hvd_rc finalize(hvd_comm comm, int64_t deadline_ns, hvd_error* err) {
  return guarded(err, [&] { return comm_of(comm)->finalize(deadline_ns, err); });
}

hvd_rc destroy(hvd_comm comm, hvd_error*) {
  delete comm_of(comm);
  return HVD_OK;
}

hvd_rc abort_comm(hvd_comm comm, hvd_error*) {
  comm_of(comm)->abort();
  return HVD_OK;
}

hvd_rc async_error(hvd_comm comm, hvd_error* err) { return comm_of(comm)->async_error(err); }

hvd_rc query(hvd_comm, const hvd_coll_args* args, hvd_coll_caps* caps, hvd_error* err) {
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

hvd_rc collective(hvd_comm comm, const hvd_coll_args* args, hvd_req* req, hvd_error* err) {
  if (req == nullptr) return fail(err, HVD_E_INVALID, 0, "the place for the request is NULL");
  *req = nullptr;
  hvd_rc rc = check_struct(args, sizeof *args, sizeof *args, "hvd_coll_args", err);
  if (rc != HVD_OK) return rc;
  rc = guarded(err, [&] { return comm_of(comm)->start(*args, err); });
  if (rc == HVD_INPROGRESS) *req = reinterpret_cast<hvd_req>(comm);
  return rc;
}

hvd_rc req_test(hvd_req req, hvd_error* err) {
  return guarded(err, [&] { return comm_of(req)->test(err); });
}

hvd_rc req_wait(hvd_req req, int64_t deadline_ns, hvd_error* err) {
  return guarded(err, [&] { return comm_of(req)->wait(deadline_ns, err); });
}

hvd_rc req_free(hvd_req req) { return comm_of(req)->free(); }

constexpr uint64_t kCaps =
    HVD_CAP_REQUEST | HVD_CAP_VECTORED | HVD_CAP_ABORT | HVD_CAP_ONE_HOST | HVD_CAP_MEM_HOST | HVD_CAP_PROCESS_LOCAL;

}  // namespace

const hvd_comm_api kCommunicator = {
    .hdr = {sizeof(hvd_comm_api), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr},
    .device_types = "cpu",
    .caps = kCaps,
    .id_bytes = nullptr,
    .id_create = nullptr,
    .create = create,
    .create_test = nullptr,
    .split = nullptr,
    .finalize = finalize,
    .destroy = destroy,
    .abort = abort_comm,
    .async_error = async_error,
    .query = query,
    .collective = collective,
    .group_begin = nullptr,
    .group_end = nullptr,
    .req_test = req_test,
    .req_wait = req_wait,
    .req_free = req_free,
    .mem_register = nullptr,
    .mem_deregister = nullptr,
};

}  // namespace hvd::shm
