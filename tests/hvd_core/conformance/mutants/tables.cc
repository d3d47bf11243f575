// Faults of loading and of the tables' contents, which L0 finds, and leaks of making communicators (L4).
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "shim.h"

namespace mutants {
namespace {

void* sleep_for_ever(void*) {
  for (;;) pause();
}

void start_thread() {
  pthread_t thread;
  pthread_create(&thread, nullptr, sleep_for_ever, nullptr);
}

const Add a1("changes_environment", [] { setenv("HVD_MUTANT_WAS_HERE", "1", 1); }, nullptr);
const Add a2("starts_thread", [] { start_thread(); }, nullptr);
const Add b10("prints_when_loaded", [] { std::puts("Acme collectives 3.1"); }, nullptr);
const Add b11(
    "changes_limit",
    [] {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur /= 2;
      setrlimit(RLIMIT_NOFILE, &limit);
    },
    nullptr);
// As a library does that is linked with -ffast-math.
const Add b12("flushes_denormals_when_loaded", [] { flush_denormals(); }, nullptr);
const Add b13("changes_umask", [] { umask(077); }, nullptr);
const Add b14(
    "changes_cores",
    [] {
      cpu_set_t cores;
      sched_getaffinity(0, sizeof cores, &cores);
      int last = CPU_SETSIZE - 1;
      while (!CPU_ISSET(last, &cores)) --last;
      if (CPU_COUNT(&cores) > 1) CPU_CLR(last, &cores);
      sched_setaffinity(0, sizeof cores, &cores);
    },
    nullptr);
const Add a3("handles_signal", [] { signal(SIGUSR2, [](int) {}); }, nullptr);
const Add a4("half_a_group", [] { ours.comm.id_create = nullptr, ours.comm.id_bytes = [] { return uint64_t{8}; }; });
const Add a5("lacks_required_slot", [] { ours.comm.query = nullptr; });
const Add a6("short_table", [] { ours.comm.hdr.struct_size -= 8; });
const Add a7("wrong_name", [] { ours.backend.name = "somebody_else"; });
const Add a8("both_completions", [] { ours.comm.caps |= HVD_CAP_STREAM | HVD_CAP_REQUEST; });
const Add a9("undocumented_option", [] {
  static hvd_option option;
  option.hdr = {sizeof option, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  option.name = "knob";
  option.type = "int";
  option.fallback = "0";
  option.range = "";
  option.doc = "";
  ours.backend.options = &option;
  ours.backend.option_count = 1;
});

const Add a10("default_out_of_range", [] {
  static hvd_option option;
  option.hdr = {sizeof option, HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  option.name = "knob";
  option.type = "size";
  option.fallback = "2MiB";
  option.range = "4KiB..1MiB";
  option.doc = "How much the knob holds.";
  ours.backend.options = &option;
  ours.backend.option_count = 1;
});

// `*out = mine`, however short the caller's struct is.
const Add q1("query_overruns_struct", [] {
  ours.comm.query = [](hvd_comm, const hvd_coll_args*, hvd_coll_caps* out, hvd_error*) -> hvd_rc {
    const hvd_hdr hdr = out->hdr;
    std::memset(out, 0, sizeof *out);
    out->hdr = hdr;
    out->support = HVD_NATIVE;
    return HVD_OK;
  };
});

const Add q2("query_changes_its_mind", [] {
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) -> hvd_rc {
    static int asked = 0;
    const hvd_rc rc = real->comm->query(c, a, out, e);
    out->score = ++asked;
    return rc;
  };
});

const Add q3("query_differs_by_rank", [] {
  learn_rank();
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) -> hvd_rc {
    const hvd_rc rc = real->comm->query(c, a, out, e);
    if (world_rank % 2 && a->dtype == HVD_INT16) out->support = HVD_UNSERVED;
    return rc;
  };
});

const Add q4("query_ignores_newer_fields", [] {
  ours.comm.query = [](hvd_comm c, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error* e) {
    hvd_coll_args mine = *a;
    mine.hdr.struct_size = sizeof mine;
    return real->comm->query(c, &mine, out, e);
  };
});

// Says that it has everything.
const Add q5("query_lies", [] {
  ours.comm.query = [](hvd_comm, const hvd_coll_args* a, hvd_coll_caps* out, hvd_error*) -> hvd_rc {
    out->support = a->coll >= 0 && a->coll < HVD_COLL_COUNT && a->dtype >= 0 && a->dtype < HVD_DTYPE_COUNT &&
                   a->op >= 0 && a->op < HVD_REDOP_COUNT;
    return HVD_OK;
  };
});

const Add p0("create_turns_ranks_around", [] {
  ours.comm.create = [](const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    hvd_comm_args mine = *a;
    mine.rank = a->size - 1 - a->rank;
    return real->comm->create(&mine, out, e);
  };
});

// A split that makes its communicators anew.
hvd_rc split_by_create(const hvd_comm_args* a, int32_t rank, hvd_comm* out, hvd_error* e) {
  *out = nullptr;
  if (a->size == 0) return HVD_OK;
  hvd_comm_args mine = *a;
  mine.rank = rank;
  return real->comm->create(&mine, out, e);
}
// Numbers its members backwards.
const Add p1("split_turns_ranks_around", [] {
  ours.comm.split = [](hvd_comm, const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    return split_by_create(a, a->size - 1 - a->rank, out, e);
  };
});
// No fault, for the control.
const Add p2("split_is_create", [] {
  ours.comm.split = [](hvd_comm, const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    return split_by_create(a, a->rank, out, e);
  };
});
// Gives a communicator also to the ranks that asked for no communicator (size 0).
const Add p3("split_gives_every_rank_one", [] {
  ours.comm.split = [](hvd_comm, const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    if (a->size != 0) return split_by_create(a, a->rank, out, e);
    *out = reinterpret_cast<hvd_comm>(&ours);
    return hvd_rc{HVD_OK};
  };
});

template <class Leak>
void leak_on_create(Leak) {
  ours.comm.create = [](const hvd_comm_args* a, hvd_comm* out, hvd_error* e) {
    Leak()();
    return real->comm->create(a, out, e);
  };
}

struct LeakDescriptor {
  void operator()() const { (void)!open("/dev/null", O_RDONLY | O_CLOEXEC); }
};
struct LeakMemory {
  void operator()() const {
    static char* volatile last;  // or the compiler makes nothing of it
    last = static_cast<char*>(std::malloc(1 << 20));
    std::memset(last, 1, 1 << 20);
  }
};
struct LeakThread {
  void operator()() const { start_thread(); }
};

int new_name(int turn) {
  std::string name = "/dev/shm/hvd-mutant-" + std::to_string(getpid()) + "-" + std::to_string(turn);
  return open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
}
// Every communicator leaves a name, which no process has mapped.
struct LeaveName {
  void operator()() const {
    static int turn;
    close(new_name(turn++));
  }
};
// One communicator of many leaves a name, which its process keeps mapped.
struct LeaveMappedName {
  void operator()() const {
    static int turn;
    if (++turn != 10) return;
    int fd = new_name(turn);
    if (ftruncate(fd, 4096) == 0) mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
  }
};

const Add l1("leaks_descriptor", [] { leak_on_create(LeakDescriptor()); });
const Add l2("leaks_memory", [] { leak_on_create(LeakMemory()); });
const Add l3("leaks_thread", [] { leak_on_create(LeakThread()); });
const Add l4("leaves_names", [] { leak_on_create(LeaveName()); });
const Add l5("leaves_mapped_name", [] { leak_on_create(LeaveMappedName()); });
const Add l6(
    "leaves_store_keys", [] { our_host.store_del = [](void*, const char*, hvd_error*) -> hvd_rc { return HVD_OK; }; },
    nullptr);

}  // namespace
}  // namespace mutants
