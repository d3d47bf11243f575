// Faults of conduct: calls that do not come back, and changes of the process that creation of a communicator makes.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <clocale>
#include <cstdlib>
#include <thread>

#include "shim.h"

namespace mutants {
namespace {

template <typename R, typename... A>
void hang_in(R (*&slot)(A...)) {
  slot = [](A...) -> R {
    for (;;) pause();
  };
}

const Add g0("hangs_in_query", [] { hang_in(ours.comm.query); });
const Add g1("hangs_in_async_error", [] { hang_in(ours.comm.async_error); });
const Add g2("hangs_in_create", [] { hang_in(ours.comm.create); });
const Add g3("hangs_in_collective", [] { hang_in(ours.comm.collective); });
const Add g4("hangs_in_req_test", [] { hang_in(ours.comm.req_test); });
const Add g5("hangs_in_req_wait", [] { hang_in(ours.comm.req_wait); });
const Add g6("hangs_in_req_free", [] { hang_in(ours.comm.req_free); });
const Add g7("hangs_in_finalize", [] { hang_in(ours.comm.finalize); });
const Add g8("hangs_in_abort", [] { hang_in(ours.comm.abort); });
const Add g9("hangs_in_destroy", [] { hang_in(ours.comm.destroy); });
const Add g10("hangs_in_open", [] { hang_in(ours.device.open); });
const Add g11("hangs_in_mem_alloc", [] { hang_in(ours.device.mem_alloc); });
const Add g12("hangs_in_stream_create", [] { hang_in(ours.device.stream_create); });
const Add g13("hangs_in_id_create", [] { hang_in(ours.comm.id_create); });
const Add g14("hangs_in_group_begin", [] { hang_in(ours.comm.group_begin); });

// Not a fault: each call takes a while, and then does what it should.
template <auto slot, typename R, typename... A>
void slow_in(R (*function)(A...)) {
  if (function == nullptr) return;
  ours.comm.*slot = [](A... arguments) -> R {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return (real->comm->*slot)(arguments...);
  };
}

const Add s0("slow_in_each_call", [] {
  slow_in<&hvd_comm_api::create>(real->comm->create);
  slow_in<&hvd_comm_api::query>(real->comm->query);
  slow_in<&hvd_comm_api::collective>(real->comm->collective);
  slow_in<&hvd_comm_api::req_test>(real->comm->req_test);
  slow_in<&hvd_comm_api::req_wait>(real->comm->req_wait);
  slow_in<&hvd_comm_api::req_free>(real->comm->req_free);
  slow_in<&hvd_comm_api::abort>(real->comm->abort);
  slow_in<&hvd_comm_api::destroy>(real->comm->destroy);
});

// A communicator's creation with a side effect.
template <typename Effect>
void at_creation(Effect) {
  ours.comm.create = [](const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    Effect()();
    return real->comm->create(a, out, e);
  };
}
struct Handler {
  void operator()() const {
    signal(SIGUSR2, [](int) {});
  }
};
struct Variable {
  void operator()() const { setenv("PATH", "/nowhere", 1); }
};
struct Folder {
  void operator()() const {
    if (chdir("/") != 0) std::abort();
  }
};
struct Locale {
  void operator()() const {
    if (std::setlocale(LC_ALL, "C") == nullptr) std::abort();
  }
};
struct Output {
  void operator()() const {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1);
    close(nowhere);
  }
};
struct Denormals {
  void operator()() const { flush_denormals(); }
};
const Add e5("create_flushes_denormals", [] { at_creation(Denormals()); });
const Add e6("collective_flushes_denormals", [] {
  ours.comm.collective = [](hvd_comm c, const hvd_coll_args* a, hvd_req* r, hvd_error* e) {
    flush_denormals();
    return real->comm->collective(c, a, r, e);
  };
});
const Add e0("create_handles_signal", [] { at_creation(Handler()); });
const Add e1("create_changes_variable", [] { at_creation(Variable()); });
const Add e2("create_changes_folder", [] { at_creation(Folder()); });
const Add e3("create_changes_locale", [] { at_creation(Locale()); });
const Add e4("create_redirects_output", [] { at_creation(Output()); });

// Takes a rank that has died for a mistake of its own.
hvd_rc own_mistake(hvd_rc rc, hvd_error* e) {
  if (rc != HVD_E_REMOTE && rc != HVD_E_TIMEOUT) return rc;
  return e->code = HVD_E_INTERNAL;
}
const Add x0("dead_peer_is_internal", [] {
  ours.comm.req_wait = [](hvd_req r, int64_t d, hvd_error* e) { return own_mistake(real->comm->req_wait(r, d, e), e); };
  ours.comm.req_test = [](hvd_req r, hvd_error* e) { return own_mistake(real->comm->req_test(r, e), e); };
});

const Add x1("query_scores_below_zero", [] {
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) {
    const hvd_rc rc = real->comm->query(c, a, out, e);
    if (rc == HVD_OK) out->score = -5;
    return rc;
  };
});
const Add x2("query_wants_odd_alignment", [] {
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) {
    const hvd_rc rc = real->comm->query(c, a, out, e);
    if (rc == HVD_OK) out->alignment = 48;
    return rc;
  };
});

// Not a fault: a backend of a later minor version, with a capability and a field that this kit does not know.
const Add x3("is_newer", [] {
  static hvd_option option;
  for (hvd_hdr* hdr : {&ours.backend.hdr, &ours.comm.hdr, &ours.device.hdr}) hdr->minor = HVD_ABI_MINOR + 1;
  ours.comm.caps |= uint64_t{1} << 40;
  option.hdr = {sizeof option, HVD_ABI_MAJOR, HVD_ABI_MINOR + 1, nullptr};
  option.name = "newest";
  option.type = "quantum";
  option.fallback = option.range = "";
  option.doc = "An option of a type that is newer than the kit.";
  ours.backend.options = &option;
  ours.backend.option_count = 1;
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) -> hvd_rc {
    const uint32_t known = sizeof *a + 8;  // one field more than the kit has
    const auto* bytes = reinterpret_cast<const char*>(a);
    for (uint32_t i = known; i < a->hdr.struct_size; ++i) {
      if (bytes[i] != 0) return e->code = HVD_E_UNSUPPORTED;
    }
    hvd_coll_args mine = *a;
    mine.hdr.struct_size = sizeof mine;
    return real->comm->query(c, &mine, out, e);
  };
});

}  // namespace
}  // namespace mutants
