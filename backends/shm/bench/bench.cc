// Latency and bandwidth of the shm backend between two processes, through its table, beside a hand-written loop.
//
//   hvd_shm_bench path/to/libhvd_backend_shm.so [largest MiB, default 64]
//
// Buffers are rewritten before every iteration (not timed), each process is pinned to a processor of its own, and the
// median and the tenth percentile (where the machine is shared, the more telling one) of the iterations are printed.
// algbw = bytes of one rank's buffer / time. float32, sum, in place.
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "bare_loop.h"
#include "hvd/backend_abi.h"

namespace {

using hvd::shm_bench::BareSegment;

struct Shared {
  std::atomic<uint32_t> has_value, gate[2];
  uint64_t bytes;
  char value[4096];
  BareSegment bare;
};
Shared* g_shared;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

[[noreturn]] void die(const char* what, const hvd_error& e) {
  std::fprintf(stderr, "%s: code %d: %s\n", what, e.code, e.text);
  std::_Exit(1);
}

hvd_rc store_set(void*, const char*, const void* p, uint64_t n, hvd_error*) {
  std::memcpy(g_shared->value, p, n);
  g_shared->bytes = n;
  g_shared->has_value.store(1);
  return HVD_OK;
}
hvd_rc store_get(void*, const char*, void* p, uint64_t* n, int64_t, hvd_error*) {
  while (g_shared->has_value.load() == 0) usleep(100);
  std::memcpy(p, g_shared->value, g_shared->bytes);
  *n = g_shared->bytes;
  return HVD_OK;
}
hvd_rc store_del(void*, const char*, hvd_error*) { return HVD_OK; }
// Options come from the environment, as they are called: chunk_kib=64 hvd_shm_bench ...
hvd_rc option(const char* key, char* text, uint64_t* n) {
  const char* value = std::getenv(key);
  if (value == nullptr) return HVD_E_UNAVAILABLE;
  *n = std::min<uint64_t>(*n, std::strlen(value));
  std::memcpy(text, value, *n);
  return HVD_OK;
}
void log_line(int32_t, const char*, int32_t, const char* text) { std::fprintf(stderr, "%s\n", text); }

struct Bench {
  int rank;
  const hvd_comm_api* api;
  hvd_comm comm;
  hvd_error error;
  uint64_t bare_at = 0;
  std::vector<hvd_buf> bufs;
  std::vector<uint64_t> counts;

  // The sum of `n` floats in place, cut into `parts` buffers of nearly one size.
  void allreduce(float* data, uint64_t n, uint64_t parts) {
    bufs.clear();
    counts.clear();
    for (uint64_t i = 0; i < parts; ++i) {
      const uint64_t from = n * i / parts, to = n * (i + 1) / parts;
      bufs.push_back({data + from, 0, (to - from) * 4});
      counts.push_back(to - from);
    }
    hvd_coll_args a = {};
    a.hdr.struct_size = sizeof a;
    a.coll = HVD_ALLREDUCE;
    a.dtype = HVD_FLOAT32;
    a.n_bufs = parts;
    a.in = a.out = bufs.data();
    a.counts = counts.data();
    hvd_req request;
    hvd_rc rc = api->collective(comm, &a, &request, &error);
    if (rc == HVD_INPROGRESS) {
      rc = api->req_wait(request, HVD_NO_DEADLINE, &error);
      api->req_free(request);
    }
    if (rc != HVD_OK) die("allreduce", error);
  }
  void bare(float* data, uint64_t n) { hvd::shm_bench::bare_allreduce(&g_shared->bare, rank, data, n, &bare_at); }
  void meet() {
    const uint32_t round = g_shared->gate[rank].fetch_add(1) + 1;
    while (g_shared->gate[1 - rank].load() < round) {
    }
  }
};

struct Times {
  double median, best;  // ns
};

// The time of one operation; tiny operations are timed in runs of `run`.
template <class Operation>
Times measure(Bench& b, std::vector<float>& data, uint64_t n, int iterations, int run, Operation operation) {
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    std::fill(data.begin(), data.begin() + static_cast<int64_t>(n), 0.5f);
    b.meet();
    const int64_t t = now_ns();
    for (int j = 0; j < run; ++j) operation(data.data(), n);
    times.push_back(static_cast<double>(now_ns() - t) / run);
    const float expected = std::ldexp(0.5f, run);
    if (data[0] != expected || data[n - 1] != expected) std::fprintf(stderr, "wrong result %g\n", data[n - 1]);
  }
  std::sort(times.begin(), times.end());
  return {times[iterations / 2], times[iterations / 10]};
}

int run_rank(int rank, const char* library, uint64_t largest) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && seen++ == rank) CPU_SET(cpu, &one);
  }
  if (sched_setaffinity(0, sizeof one, &one) != 0) std::fprintf(stderr, "not pinned: too few processors\n");

  Bench b = {};
  b.rank = rank;
  b.error.hdr.struct_size = sizeof b.error;
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  static hvd_host_api host = {};
  host.hdr.struct_size = sizeof host;
  host.log = log_line;
  host.store_set = store_set;
  host.store_get = store_get;
  host.store_del = store_del;
  host.option = option;
  const hvd_backend_api* table;
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(handle, "hvd_backend_entry_v1"));
  if (entry(&host, &table, &b.error) != HVD_OK) die("entry", b.error);
  b.api = table->comm;
  hvd_comm_args args = {};
  args.hdr.struct_size = sizeof args;
  args.key = "bench";
  args.rank = rank;
  args.size = 2;
  if (b.api->create(&args, &b.comm, &b.error) != HVD_OK) die("create", b.error);

  std::vector<float> data(largest / 4);
  const auto bare = [&](float* p, uint64_t n) { b.bare(p, n); };
  if (rank == 0) {
    std::printf("%16s %21s %17s %6s | %21s %17s %6s\n", "", "median us", "GB/s", "", "best tenth us", "GB/s", "");
    std::printf("%10s %5s %10s %10s %8s %8s %6s | %10s %10s %8s %8s %6s\n", "bytes", "bufs", "ours", "bare", "ours",
                "bare", "ratio", "ours", "bare", "ours", "bare", "ratio");
  }
  // The bare loop always takes one buffer of the whole size.
  const auto row = [&](uint64_t bytes, uint64_t parts) {
    const uint64_t n = bytes / 4;
    const int iterations = bytes > (4 << 20) ? 30 : 300, run = bytes <= 65536 ? 50 : 1;
    const auto ours = [&](float* p, uint64_t count) { b.allreduce(p, count, parts); };
    measure(b, data, n, 20, run, ours);
    const Times ours_ns = measure(b, data, n, iterations, run, ours);
    measure(b, data, n, 20, run, bare);
    const Times bare_ns = measure(b, data, n, iterations, run, bare);
    if (rank != 0) return;
    const double size = static_cast<double>(bytes);
    std::printf("%10llu %5llu %10.2f %10.2f %8.2f %8.2f %6.2f | %10.2f %10.2f %8.2f %8.2f %6.2f\n",
                (unsigned long long)bytes, (unsigned long long)parts, ours_ns.median / 1e3, bare_ns.median / 1e3,
                size / ours_ns.median, size / bare_ns.median, bare_ns.median / ours_ns.median, ours_ns.best / 1e3,
                bare_ns.best / 1e3, size / ours_ns.best, size / bare_ns.best, bare_ns.best / ours_ns.best);
  };
  for (uint64_t bytes = 4; bytes <= largest; bytes *= 2) row(bytes, 1);
  row(uint64_t{1000} * 64, 1000);
  row(uint64_t{1000} * 1024, 1000);
  row(std::min<uint64_t>(largest, 64 << 20), 161);
  b.api->destroy(b.comm, &b.error);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s path/to/libhvd_backend_shm.so [largest MiB]\n", argv[0]);
    return 2;
  }
  const uint64_t largest = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64) << 20;
  void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  g_shared = new (page) Shared{};
  const pid_t child = fork();
  const int rc = run_rank(child == 0 ? 1 : 0, argv[1], largest);
  if (child == 0) std::_Exit(rc);
  int status = 0;
  waitpid(child, &status, 0);
  return rc != 0 || status != 0;
}
