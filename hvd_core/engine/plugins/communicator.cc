// One communicator and its one request. See communicator.h.
#include "engine/plugins/communicator.h"

#include <cstring>
#include <utility>

#include "engine/base/operations.h"
#include "engine/plugins/backend.h"
#include "engine/plugins/backend_call.h"
#include "engine/plugins/host_api.h"

namespace hvd::plugins {
namespace {

template <class T>
const T* pointer(const std::vector<T>& v) {
  return v.empty() ? nullptr : v.data();
}

uint64_t bytes_of(const Collective& c) {
  uint64_t bytes = 0;
  for (const hvd_buf& buf : c.coll == HVD_RECV ? c.out : c.in) bytes += buf.bytes;
  return bytes;
}

}  // namespace

void Collective::reset(const CollectiveSettings& settings) {
  static_cast<CollectiveSettings&>(*this) = settings;
  in.clear();
  out.clear();
  counts.clear();
  in_counts.clear();
  out_counts.clear();
}

hvd_coll_args Collective::args() const {
  hvd_coll_args a;
  std::memset(&a, 0, sizeof(a));
  a.hdr = {sizeof(a), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  a.coll = coll;
  a.dtype = dtype;
  a.op = op;
  a.n_bufs = counts.size();
  a.in = coll == HVD_RECV ? nullptr : pointer(in);
  a.out = coll == HVD_SEND ? nullptr : pointer(out);
  a.counts = pointer(counts);
  a.in_counts = pointer(in_counts);
  a.out_counts = pointer(out_counts);
  a.root = root;
  a.peer = peer;
  a.prescale = prescale;
  a.postscale = postscale;
  a.stream = stream;
  a.deadline_ns = deadline_ns;
  a.seq = seq;
  return a;
}

Communicator::Communicator(std::shared_ptr<Backend> backend, hvd_comm handle, int32_t rank, int32_t size,
                           std::shared_ptr<DriverRecord> driver)
    : backend_(std::move(backend)),
      driver_(std::move(driver)),
      api_(backend_->comm_api()),
      handle_(handle),
      rank_(rank),
      size_(size) {}

Communicator::~Communicator() {
  if (in_flight()) {
    abort();
    free_request();
    free_group();
  }
  hvd_error error = empty_error();
  const hvd_rc rc =
      answer_of(Call::comm_destroy, backend_->name(), &error, [&] { return api_->destroy(handle_, &error); });
  if (rc == HVD_OK) return;
  try {
    throw_backend_error(backend_->name(), "destroy", rc, error);
  } catch (const std::exception& e) {
    log(HVD_LOG_WARN, backend_->name(), __FILE__, __LINE__, e.what());
  }
}

void Communicator::free(hvd_req request) noexcept {
  if (request == nullptr) return;
  answer_of(Call::comm_req_free, backend_->name(), nullptr, [&] { return api_->req_free(request); });
}

void Communicator::begin_operation(std::span<const Collective> members) noexcept {
  if (!driver_) return;
  uint64_t bytes = 0;
  for (const Collective& c : members) bytes += bytes_of(c);
  recorded_ = driver_->begin_operation(backend_->name(), members[0].coll, bytes);
}

void Communicator::end_operation() noexcept {
  if (const int place = std::exchange(recorded_, -1); place >= 0) driver_->end_operation(place);
}

// The operation is in flight until its requests are free, so that a req_free that does not return is reported.
void Communicator::free_request() noexcept {
  free(std::exchange(request_, nullptr));
  end_operation();
}

void Communicator::free_group() noexcept {
  for (hvd_req request : group_) free(request);
  group_.clear();
  end_operation();
}

// Refuses new operations after an abort of a backend without an abort slot.
void Communicator::check_alive(const char* what) const {
  if (!aborted() || (api_->caps & HVD_CAP_ABORT)) return;
  throw BackendError(HVD_E_ABORTED, HVD_EF_COMM_DEAD, 0,
                     backend_->name() + ": " + what + ": the communicator was aborted (ABORTED)");
}

// Returns true if the operation is complete, false if it is in flight. Throws if it failed; it is not in flight then.
bool Communicator::settle(const char* what, hvd_rc rc, const hvd_error& error) {
  if (rc == HVD_INPROGRESS) return false;
  free_request();
  if (rc != HVD_OK) throw_backend_error(backend_->name(), what, rc, error);
  return true;
}

void Communicator::check(const Collective& c) const {
  const char* what = base::collective_name(c.coll);
  check_alive(what);
  const size_t n = c.counts.size();
  const size_t per_rank = n * static_cast<size_t>(size_);
  const char* mistake = nullptr;
  if (in_flight()) {
    mistake = "an earlier operation on this communicator is still in flight";
  } else if (c.in.size() != n || c.out.size() != n) {
    mistake = "in, out and counts differ in length";
  } else if ((!c.in_counts.empty() && c.in_counts.size() != per_rank) ||
             (!c.out_counts.empty() && c.out_counts.size() != per_rank)) {
    mistake = "in_counts or out_counts do not have one element per rank and buffer";
  } else if (n > 1 && !(api_->caps & HVD_CAP_VECTORED)) {
    mistake = "the backend takes one buffer at a time (no HVD_CAP_VECTORED)";
  }
  if (mistake != nullptr) {
    throw BackendError(HVD_E_INVALID, 0, 0, backend_->name() + ": " + what + ": " + mistake + " (INVALID)");
  }
}

// Calls the backend once and returns its answer, or an error for an answer that the ABI does not allow.
hvd_rc Communicator::submit(const Collective& c, hvd_req* request, hvd_error* error) {
  hvd_coll_args args = c.args();
  // The log has ordered all collectives, one at a time. Of overlapped ones each rank chooses which it calls first.
  if (!c.overlapped) args.flags = HVD_COLL_AGREED;
  coll_ = c.coll;
  if (driver_ && args.deadline_ns == HVD_NO_DEADLINE && driver_->deadline_after > 0)
    args.deadline_ns = driver_->clock.load(std::memory_order_relaxed) + driver_->deadline_after;
  const hvd_rc rc = answer_of(Call::comm_collective, backend_->name(), error,
                              [&] { return api_->collective(handle_, &args, request, error); });
  if (rc != HVD_INPROGRESS || *request != nullptr) return rc;
  return fill_error(error, HVD_E_ABI, "the backend answered INPROGRESS without a request");
}

bool Communicator::start(const Collective& c) {
  check(c);
  begin_operation({&c, 1});
  hvd_error error = empty_error();
  hvd_req request = nullptr;
  const hvd_rc rc = submit(c, &request, &error);
  request_ = request;
  return settle(base::collective_name(c.coll), rc, error);
}

bool Communicator::start_group(const std::vector<Collective>& members) {
  for (const Collective& c : members) {
    check(c);
    if (c.coll == members[0].coll || (api_->caps & HVD_CAP_GROUP_MIXED)) continue;
    throw BackendError(HVD_E_INVALID, 0, 0,
                       backend_->name() + ": the backend takes groups of one kind of collective only (INVALID)");
  }
  if (!(api_->caps & (HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED)) || !HVD_HAS(api_, hvd_comm_api, group_begin)) {
    throw BackendError(HVD_E_INVALID, 0, 0, backend_->name() + ": the backend has no groups (INVALID)");
  }
  begin_operation(members);
  hvd_error error = empty_error();
  const char* what = "group_begin";
  hvd_rc rc =
      answer_of(Call::comm_group_begin, backend_->name(), &error, [&] { return api_->group_begin(handle_, &error); });
  const bool begun = rc == HVD_OK;
  for (size_t i = 0; i < members.size() && (rc == HVD_OK || rc == HVD_INPROGRESS); ++i) {
    what = base::collective_name(members[i].coll);
    hvd_req request = nullptr;
    rc = submit(members[i], &request, &error);
    if (request != nullptr) group_.push_back(request);
  }
  if (begun) {
    // Also after a failure, so that the backend does not stay inside the group. The first error is the one that counts.
    const bool well = rc == HVD_OK || rc == HVD_INPROGRESS;
    hvd_error second = empty_error();
    const hvd_rc ended = answer_of(Call::comm_group_end, backend_->name(), well ? &error : &second,
                                   [&] { return api_->group_end(handle_, well ? &error : &second); });
    if (well) rc = ended, what = "group_end";
  }
  if (rc != HVD_OK) {
    if (!group_.empty()) abort();  // members that did start must not go on using their buffers
    free_group();
    throw_backend_error(backend_->name(), what, rc, error);
  }
  return settle_group(Call::comm_req_test, 0);
}

// Tests a request or waits for it, as `call` says.
hvd_rc Communicator::progress(hvd_req request, Call call, int64_t deadline_ns, hvd_error* error) {
  return answer_of(call, backend_->name(), error, [&] {
    return call == Call::comm_req_test ? api_->req_test(request, error) : api_->req_wait(request, deadline_ns, error);
  });
}

// Goes over the requests of a group once.
bool Communicator::settle_group(Call call, int64_t deadline_ns) {
  bool all = true;
  for (hvd_req& request : group_) {
    if (request == nullptr) continue;
    hvd_error error = empty_error();
    const hvd_rc rc = progress(request, call, deadline_ns, &error);
    if (rc == HVD_INPROGRESS) {
      all = false;
      continue;
    }
    free(std::exchange(request, nullptr));
    if (rc == HVD_OK) continue;
    abort();
    free_group();
    throw_backend_error(backend_->name(), "group", rc, error);
  }
  if (all) free_group();
  return all;
}

bool Communicator::test() { return progress_all(Call::comm_req_test, 0); }

bool Communicator::wait(int64_t deadline_ns) { return progress_all(Call::comm_req_wait, deadline_ns); }

bool Communicator::progress_all(Call call, int64_t deadline_ns) {
  if (!in_flight()) return true;
  check_alive(base::collective_name(coll_));
  if (!group_.empty()) return settle_group(call, deadline_ns);
  hvd_error error = empty_error();
  const hvd_rc rc = progress(request_, call, deadline_ns, &error);
  return settle(base::collective_name(coll_), rc, error);
}

void Communicator::abort() noexcept {
  aborted_.store(true, std::memory_order_release);
  if (!HVD_HAS(api_, hvd_comm_api, abort)) return;
  hvd_error error = empty_error();
  answer_of(Call::comm_abort, backend_->name(), &error,
            [&] { return api_->abort(handle_, &error); });  // its only failure would be "already aborted"
}

hvd_rc Communicator::async_error(std::string* text) noexcept {
  if (!HVD_HAS(api_, hvd_comm_api, async_error)) return HVD_E_UNSUPPORTED;
  hvd_error error = empty_error();
  const hvd_rc rc =
      answer_of(Call::comm_async_error, backend_->name(), &error, [&] { return api_->async_error(handle_, &error); });
  if (rc == HVD_OK || rc == HVD_E_UNSUPPORTED || text == nullptr) return rc;
  try {
    throw_backend_error(backend_->name(), "async_error", rc, error);
  } catch (const BackendError& e) {
    *text = e.what();
  }
  return rc;
}

void Communicator::finalize(int64_t deadline_ns) {
  if (!HVD_HAS(api_, hvd_comm_api, finalize)) return;
  hvd_error error = empty_error();
  const hvd_rc rc = answer_of(Call::comm_finalize, backend_->name(), &error,
                              [&] { return api_->finalize(handle_, deadline_ns, &error); });
  if (rc != HVD_OK) throw_backend_error(backend_->name(), "finalize", rc, error);
}

hvd_coll_caps Communicator::query(const Collective& collective, std::string* why) const {
  return backend_->query(handle_, collective.args(), why);
}

void* Communicator::register_memory(const hvd_buf& buf) {
  if (!HVD_HAS(api_, hvd_comm_api, mem_register)) return nullptr;
  void* registered = nullptr;
  hvd_error error = empty_error();
  const hvd_rc rc = answer_of(Call::comm_mem_register, backend_->name(), &error,
                              [&] { return api_->mem_register(handle_, buf, &registered, &error); });
  if (rc == HVD_E_UNSUPPORTED) return nullptr;
  if (rc != HVD_OK) throw_backend_error(backend_->name(), "mem_register", rc, error);
  return registered;
}

void Communicator::deregister_memory(void* registered) noexcept {
  hvd_error error = empty_error();
  const hvd_rc rc = answer_of(Call::comm_mem_deregister, backend_->name(), &error,
                              [&] { return api_->mem_deregister(handle_, registered, &error); });
  if (rc != HVD_OK && rc != HVD_E_ABORTED) log(HVD_LOG_DEBUG, backend_->name(), __FILE__, __LINE__, error.text);
}

uint64_t Communicator::caps() const { return api_->caps; }

}  // namespace hvd::plugins
