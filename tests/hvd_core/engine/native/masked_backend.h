// Backends for tests: the shm backend with parts of it taken away. What remains is chosen by a Mask: which collectives
// query admits to, limits of alignment and size (enforced on every call), lists and groups or none.
//
// A backend that is called in a way its query or its capabilities forbid answers INVALID, so that a test fails.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hvd/backend_abi.h"

namespace test {

struct Mask {
  std::string name;
  uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_ABORT | HVD_CAP_MEM_HOST | HVD_CAP_PROCESS_LOCAL;
  // `varying`: sizes per rank are given.
  std::function<bool(int32_t coll, int32_t dtype, int32_t op, bool varying)> serves;
  uint32_t alignment = 1;
  uint64_t max_count = 0;
  std::atomic<int> groups{0}, grouped{0};  // groups ended, collectives within them
};

// One table per N; load it with plugins::Backend::load_entry(&MaskedBackend<N>::entry, mask.name, ...) after set().
template <int N>
struct MaskedBackend {
  static inline Mask mask;
  static inline const hvd_backend_api* shm = nullptr;
  static inline hvd_backend_api api;
  static inline hvd_comm_api comm;

  static void open(const char* shm_library) {
    static void* library = dlopen(shm_library, RTLD_NOW | RTLD_LOCAL);
    shm_entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
  }

  static hvd_rc entry(const hvd_host_api* host, const hvd_backend_api** out, hvd_error* error) {
    const hvd_rc rc = shm_entry(host, &shm, error);
    if (rc != HVD_OK) return rc;
    comm = *shm->comm;
    comm.caps = mask.caps;
    comm.create = create;
    comm.destroy = destroy;
    comm.finalize = nullptr;
    comm.abort = [](hvd_comm c, hvd_error* e) { return shm->comm->abort(inner(c), e); };
    comm.async_error = [](hvd_comm c, hvd_error* e) { return shm->comm->async_error(inner(c), e); };
    comm.query = query;
    comm.collective = collective;
    if (mask.caps & (HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED)) {
      comm.group_begin = group_begin;
      comm.group_end = group_end;
    }
    comm.req_test = [](hvd_req r, hvd_error* e) { return drive(r, 0, e); };
    comm.req_wait = [](hvd_req r, int64_t deadline, hvd_error* e) { return drive(r, deadline, e); };
    comm.req_free = req_free;
    api = *shm;
    api.name = mask.name.c_str();
    api.comm = &comm;
    *out = &api;
    return HVD_OK;
  }

 private:
  static inline hvd_backend_entry_fn shm_entry = nullptr;

  // A collective waiting for its turn: the shm backend runs one at a time. The lists are copies.
  struct Call {
    hvd_coll_args args;
    std::vector<hvd_buf> in, out;
    std::vector<uint64_t> counts, in_counts, out_counts;
    hvd_req request = nullptr;
    bool started = false, over = false;
    hvd_rc rc = HVD_OK;
  };
  struct Comm {
    hvd_comm shm;
    int32_t rank, size;
    bool grouping = false;
    int32_t group_coll = -1;
    std::deque<std::shared_ptr<Call>> calls;
  };
  struct Request {
    Comm* comm;
    std::shared_ptr<Call> call;
  };

  static Comm* comm_of(hvd_comm c) { return reinterpret_cast<Comm*>(c); }
  static hvd_comm inner(hvd_comm c) { return comm_of(c)->shm; }

  static hvd_rc wrong(hvd_error* error, const char* text) {
    if (error) std::strncpy(error->text, text, sizeof(error->text) - 1);
    return HVD_E_INVALID;
  }

  static hvd_rc create(const hvd_comm_args* args, hvd_comm* out, hvd_error* error) {
    auto made = std::make_unique<Comm>();
    made->rank = args->rank;
    made->size = args->size;
    const hvd_rc rc = shm->comm->create(args, &made->shm, error);
    if (rc == HVD_OK) *out = reinterpret_cast<hvd_comm>(made.release());
    return rc;
  }

  static hvd_rc destroy(hvd_comm c, hvd_error* error) {
    const hvd_rc rc = shm->comm->destroy(inner(c), error);
    delete comm_of(c);
    return rc;
  }

  static bool served(const hvd_coll_args& a) {
    return mask.serves(a.coll, a.dtype, a.op, a.in_counts != nullptr || a.out_counts != nullptr);
  }

  static hvd_rc query(hvd_comm, const hvd_coll_args* args, hvd_coll_caps* caps, hvd_error* error) {
    const hvd_rc rc = shm->comm->query(nullptr, args, caps, error);
    if (rc != HVD_OK) return rc;
    if (!served(*args)) caps->support = HVD_UNSERVED;
    caps->alignment = mask.alignment;
    caps->max_count = mask.max_count;
    return HVD_OK;
  }

  static hvd_rc check(const Comm& c, const hvd_coll_args& a, hvd_error* error) {
    if (!served(a)) return wrong(error, "masked: this is not served");
    if (a.n_bufs > 1 && !(mask.caps & HVD_CAP_VECTORED)) return wrong(error, "masked: no lists");
    for (uint64_t i = 0; i < a.n_bufs; ++i) {
      const auto at = [](const hvd_buf& b) { return reinterpret_cast<uintptr_t>(b.base) + b.offset; };
      const bool reads = a.coll != HVD_BROADCAST || a.root == c.rank;
      if (reads && a.counts[i] && at(a.in[i]) % mask.alignment) return wrong(error, "masked: in is not aligned");
      const bool writes = a.coll != HVD_REDUCE || a.root == c.rank;
      if (writes && a.out[i].base && at(a.out[i]) % mask.alignment) return wrong(error, "masked: out is not aligned");
      uint64_t most = a.counts[i], out = 0;
      if (a.coll == HVD_ALLGATHER || a.coll == HVD_ALLTOALL)
        for (int32_t r = 0; r < c.size; ++r)
          out += a.out_counts ? a.out_counts[i * static_cast<uint64_t>(c.size) + static_cast<uint64_t>(r)]
                              : (a.coll == HVD_ALLGATHER ? a.counts[i] : a.counts[i] / static_cast<uint64_t>(c.size));
      if (out > most) most = out;
      if (mask.max_count && most > mask.max_count) return wrong(error, "masked: larger than max_count");
    }
    return HVD_OK;
  }

  static hvd_rc collective(hvd_comm h, const hvd_coll_args* args, hvd_req* out, hvd_error* error) {
    Comm& c = *comm_of(h);
    if (const hvd_rc rc = check(c, *args, error); rc != HVD_OK) return rc;
    if (c.grouping) {
      if (c.group_coll >= 0 && c.group_coll != args->coll && !(mask.caps & HVD_CAP_GROUP_MIXED))
        return wrong(error, "masked: a group of several kinds");
      c.group_coll = args->coll;
      if (c.rank == 0) ++mask.grouped;
    } else if (!c.calls.empty()) {
      return wrong(error, "masked: a collective is in flight already");
    }
    auto call = std::make_shared<Call>();
    call->args = *args;
    const auto copy = [&](auto& to, const auto* from, uint64_t n, auto* field) {
      if (from) to.assign(from, from + n);
      *field = from ? to.data() : nullptr;
    };
    const uint64_t n = args->n_bufs, rows = n * static_cast<uint64_t>(c.size);
    copy(call->in, args->in, n, &call->args.in);
    copy(call->out, args->out, n, &call->args.out);
    copy(call->counts, args->counts, n, &call->args.counts);
    copy(call->in_counts, args->in_counts, rows, &call->args.in_counts);
    copy(call->out_counts, args->out_counts, rows, &call->args.out_counts);
    c.calls.push_back(call);
    *out = reinterpret_cast<hvd_req>(new Request{&c, call});
    return HVD_INPROGRESS;
  }

  static hvd_rc group_begin(hvd_comm h, hvd_error* error) {
    Comm& c = *comm_of(h);
    if (c.grouping || !c.calls.empty()) return wrong(error, "masked: group_begin in the middle of something");
    c.grouping = true;
    c.group_coll = -1;
    return HVD_OK;
  }

  static hvd_rc group_end(hvd_comm h, hvd_error* error) {
    Comm& c = *comm_of(h);
    if (!c.grouping) return wrong(error, "masked: group_end without group_begin");
    c.grouping = false;
    if (c.rank == 0) ++mask.groups;
    return HVD_OK;
  }

  static hvd_rc drive(hvd_req r, int64_t deadline_ns, hvd_error* error) {
    Comm& c = *reinterpret_cast<Request*>(r)->comm;
    const auto mine = reinterpret_cast<Request*>(r)->call;
    if (c.grouping) return wrong(error, "masked: a request is tested inside its group");
    while (!mine->over) {
      Call& next = *c.calls.front();
      if (!next.started) {
        next.rc = shm->comm->collective(c.shm, &next.args, &next.request, error);
        next.started = true;
      } else {
        next.rc = deadline_ns ? shm->comm->req_wait(next.request, deadline_ns, error)
                              : shm->comm->req_test(next.request, error);
        if (next.rc == HVD_INPROGRESS) return HVD_INPROGRESS;
      }
      if (next.rc == HVD_INPROGRESS) continue;
      if (next.request) shm->comm->req_free(next.request);
      next.over = true;
      c.calls.pop_front();
    }
    return mine->rc;
  }

  static hvd_rc req_free(hvd_req r) {
    Request* request = reinterpret_cast<Request*>(r);
    Call& call = *request->call;
    if (!call.over) {
      if (call.started && call.request) shm->comm->req_free(call.request);
      auto& calls = request->comm->calls;
      std::erase(calls, request->call);
    }
    delete request;
    return HVD_OK;
  }
};

}  // namespace test
