// Faults of time and life: what is done too early, too late, on the host, or not at all.
#include <ctime>
#include <thread>

#include "shim.h"

namespace mutants {
namespace {

// Waits on the host for the end of the work that it was only to start.
const Add t1("waits_in_enqueue", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) -> hvd_rc {
    if (ours.comm.caps & HVD_CAP_REQUEST) return complete(c, a, e);
    const hvd_rc rc = real->comm->collective(c, a, r, e);
    if (rc == HVD_OK) real->device->stream_sync(a->stream, a->deadline_ns, e);
    return rc;
  };
});

// Waits on the host for the work that is already in the stream, as a copy through pageable memory would.
const Add t2("syncs_before_enqueue", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) -> hvd_rc {
    real->device->stream_sync(a->stream, a->deadline_ns, e);
    return real->comm->collective(c, a, r, e);
  };
});

// Keeps the caller's arguments and looks at them when it is asked for progress.
struct Late {
  hvd_comm comm;
  hvd_coll_args args;
  hvd_req request;
  bool started;
} late;

hvd_rc go_on(Late* l, int64_t deadline_ns, hvd_error* e) {
  if (!l->started) {
    l->started = true;
    const hvd_rc rc = real->comm->collective(l->comm, &l->args, &l->request, e);
    if (rc != HVD_INPROGRESS) return rc;
  }
  return deadline_ns ? real->comm->req_wait(l->request, deadline_ns, e) : real->comm->req_test(l->request, e);
}

const Add t3("uses_arguments_later", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error*) -> hvd_rc {
    late = {c, *a, nullptr, false};
    *r = reinterpret_cast<hvd_req>(&late);
    return HVD_INPROGRESS;
  };
  ours.comm.req_test = [](hvd_req r, hvd_error* e) { return go_on(reinterpret_cast<Late*>(r), 0, e); };
  ours.comm.req_wait = [](hvd_req r, int64_t d, hvd_error* e) { return go_on(reinterpret_cast<Late*>(r), d, e); };
  ours.comm.req_free = [](hvd_req r) -> hvd_rc {
    auto* l = reinterpret_cast<Late*>(r);
    return l->request ? real->comm->req_free(l->request) : HVD_OK;
  };
});

const Add t0("create_ignores_deadline", [] {
  ours.comm.create = [](const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    hvd_comm_args mine = *a;
    mine.deadline_ns = HVD_NO_DEADLINE;
    return real->comm->create(&mine, out, e);
  };
});

const Add t4("abort_does_nothing", [] { ours.comm.abort = [](hvd_comm, hvd_error*) -> hvd_rc { return HVD_OK; }; });

const Add t5("abort_blocks", [] {
  ours.comm.abort = [](hvd_comm c, hvd_error* e) {
    const timespec long_time = {7, 0};
    nanosleep(&long_time, nullptr);
    return real->comm->abort(c, e);
  };
});

const Add t6("async_error_always_well",
             [] { ours.comm.async_error = [](hvd_comm, hvd_error*) -> hvd_rc { return HVD_OK; }; });

const Add t7("req_wait_returns_early", [] {
  ours.comm.req_wait = [](hvd_req, int64_t, hvd_error*) -> hvd_rc { return HVD_OK; };
  ours.comm.req_test = [](hvd_req, hvd_error*) -> hvd_rc { return HVD_OK; };
  ours.comm.req_free = [](hvd_req) -> hvd_rc { return HVD_OK; };
});

const Add t8("timeout_is_success", [] {
  ours.comm.req_wait = [](hvd_req r, int64_t d, hvd_error* e) -> hvd_rc {
    const hvd_rc rc = real->comm->req_wait(r, d, e);
    return rc == HVD_E_TIMEOUT || rc == HVD_E_REMOTE ? HVD_OK : rc;
  };
  ours.comm.req_test = [](hvd_req r, hvd_error* e) -> hvd_rc {
    const hvd_rc rc = real->comm->req_test(r, e);
    return rc == HVD_E_TIMEOUT || rc == HVD_E_REMOTE ? HVD_OK : rc;
  };
});

// -------------------------------------------------------------------------------------------------------- devices

const Add d1("event_query_always_done",
             [] { ours.device.event_query = [](hvd_event, hvd_error*) -> hvd_rc { return HVD_OK; }; });
const Add d2("stream_sync_returns_early",
             [] { ours.device.stream_sync = [](hvd_stream, int64_t, hvd_error*) -> hvd_rc { return HVD_OK; }; });
const Add d3("stream_wait_event_does_nothing", [] {
  ours.device.stream_wait_event = [](hvd_stream, hvd_event, hvd_error*) -> hvd_rc { return HVD_OK; };
});
const Add d4("event_starts_pending", [] {
  static std::map<hvd_event, bool> recorded;
  ours.device.event_record = [](hvd_event e, hvd_stream s, hvd_error* error) {
    recorded[e] = true;
    return real->device->event_record(e, s, error);
  };
  ours.device.event_query = [](hvd_event e, hvd_error* error) -> hvd_rc {
    return recorded[e] ? real->device->event_query(e, error) : HVD_INPROGRESS;
  };
});
const Add d5("copy_ignores_offset", [] {
  ours.device.copy = [](hvd_stream s, hvd_buf dst, hvd_buf src, uint64_t bytes, hvd_error* e) {
    src.offset = src.offset > 100 ? src.offset : 0;
    return real->device->copy(s, dst, src, bytes, e);
  };
});
const Add d6("copy_ignores_bounds", [] {
  ours.device.copy = [](hvd_stream s, hvd_buf dst, hvd_buf src, uint64_t bytes, hvd_error* e) {
    if (bytes > dst.bytes) bytes = dst.bytes;
    if (bytes > src.bytes) bytes = src.bytes;
    return real->device->copy(s, dst, src, bytes, e);
  };
});
const Add d7("batch_drops_last_item", [] {
  ours.device.batched_copy_scale = [](hvd_stream s, const hvd_copy_item* items, uint64_t n, hvd_error* e) {
    return real->device->batched_copy_scale(s, items, n > 1 ? n - 1 : n, e);
  };
});
const Add d8("batch_ignores_stride", [] {
  ours.device.batched_copy_scale = [](hvd_stream s, const hvd_copy_item* items, uint64_t n, hvd_error* e) -> hvd_rc {
    for (uint64_t i = 0; i < n; ++i) {
      hvd_copy_item item = items[i];
      item.hdr.struct_size = sizeof item;
      const hvd_rc rc = real->device->batched_copy_scale(s, &item, 1, e);
      if (rc != HVD_OK) return rc;
    }
    return HVD_OK;
  };
});
const Add d9("batch_ignores_scale", [] {
  ours.device.batched_copy_scale = [](hvd_stream s, const hvd_copy_item* items, uint64_t n, hvd_error* e) -> hvd_rc {
    for (uint64_t i = 0; i < n; ++i) {
      hvd_copy_item item =
          *reinterpret_cast<const hvd_copy_item*>(reinterpret_cast<const char*>(items) + i * items[0].hdr.struct_size);
      item.hdr.struct_size = sizeof item;
      item.scale = 0;
      const hvd_rc rc = real->device->batched_copy_scale(s, &item, 1, e);
      if (rc != HVD_OK) return rc;
    }
    return HVD_OK;
  };
});
const Add d10("opens_any_device", [] {
  ours.device.open = [](int32_t, void* native, hvd_device* out, hvd_error* e) {
    return real->device->open(0, native, out, e);
  };
});

// ------------------------------------------------------------------------------------------------ calls of the host

// Tells the host of a communicator that there is not.
const Add h1("notifies_a_stranger", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    host->notify(&ours);
    return real->comm->collective(c, a, r, e);
  };
});

const Add h2("phase_never_ends", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    host->activity(c, a->seq, "WORK", 1);
    return real->comm->collective(c, a, r, e);
  };
});

const Add h3("unannounced_thread", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    std::thread([] { host->log(HVD_LOG_DEBUG, __FILE__, __LINE__, "who am I?"); }).join();
    return real->comm->collective(c, a, r, e);
  };
});

// ----------------------------------------------------------------------------------------------- marks of the host's

// Takes the mark for a promise that there is nothing left to do.
const Add h4("skips_what_is_agreed", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) -> hvd_rc {
    if (a->flags & HVD_COLL_AGREED) return HVD_OK;
    return real->comm->collective(c, a, r, e);
  };
});

void register_by(hvd_rc (*how)(hvd_comm, hvd_buf, void**, hvd_error*)) {
  ours.comm.mem_register = how;
  ours.comm.mem_deregister = [](hvd_comm, void*, hvd_error*) -> hvd_rc { return HVD_OK; };
}

const Add h5("register_changes_memory", [] {
  register_by([](hvd_comm, hvd_buf buf, void** handle, hvd_error*) -> hvd_rc {
    at(buf)[0] ^= 1;
    *handle = &ours;
    return HVD_OK;
  });
});
// No fault, for the control.
const Add h6("register_is_nothing", [] {
  register_by([](hvd_comm, hvd_buf, void** handle, hvd_error*) -> hvd_rc {
    *handle = &ours;
    return HVD_OK;
  });
});

}  // namespace
}  // namespace mutants
