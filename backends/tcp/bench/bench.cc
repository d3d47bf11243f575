// Latency and bandwidth of an allreduce between processes of this host over loopback, through the backend's table.
//
//   hvd_tcp_bench path/to/libhvd_backend_tcp.so [ranks, default 2] [largest MiB, default 64] [smallest bytes, default
//   4]
//
// Prints, for each size, the median and the tenth percentile (where the machine is shared, the more telling one) of
// microseconds, bytes of one rank's buffer over the latter, and the processor time and the sleeps of rank 0 per
// operation, with the barrier before it. float32, sum, in place. Small operations are polled as
// the engine does it, large ones waited for. Options come from the environment, as they are called: chunk_kib=128.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "hvd/backend_abi.h"

namespace {

constexpr int kKeys = 64;

// The store: a table in memory that the ranks share. Keys are few and never deleted.
struct Entry {
  std::atomic<int> ready;
  char key[64];
  uint64_t bytes;
  char value[16384];
};
struct Shared {
  std::atomic<int> used;
  Entry entries[kKeys];
};
Shared* g_shared;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

double processor_us(const rusage& u) {
  const timeval &a = u.ru_utime, &b = u.ru_stime;
  return static_cast<double>(a.tv_sec + b.tv_sec) * 1e6 + static_cast<double>(a.tv_usec + b.tv_usec);
}

hvd_rc store_set(void*, const char* key, const void* p, uint64_t n, hvd_error*) {
  Entry& e = g_shared->entries[g_shared->used.fetch_add(1)];
  if (n > sizeof e.value) return HVD_E_NOMEM;
  std::strncpy(e.key, key, sizeof e.key - 1);
  std::memcpy(e.value, p, n);
  e.bytes = n;
  e.ready.store(1);
  return HVD_OK;
}
hvd_rc store_get(void*, const char* key, void* p, uint64_t* n, int64_t, hvd_error*) {
  for (;; usleep(100)) {
    for (Entry& e : g_shared->entries) {
      if (e.ready.load() == 0 || std::strcmp(e.key, key) != 0) continue;
      std::memcpy(p, e.value, e.bytes);
      *n = e.bytes;
      return HVD_OK;
    }
  }
}
hvd_rc store_del(void*, const char*, hvd_error*) { return HVD_OK; }
hvd_rc option(const char* key, char* text, uint64_t* n) {
  const char* value = std::getenv(key);
  if (value == nullptr) return HVD_E_UNAVAILABLE;
  *n = std::min<uint64_t>(*n, std::strlen(value));
  std::memcpy(text, value, *n);
  return HVD_OK;
}
void log_line(int32_t, const char*, int32_t, const char* text) { std::fprintf(stderr, "%s\n", text); }

struct Bench {
  const hvd_comm_api* api;
  hvd_comm comm = nullptr;
  hvd_error error = {};

  void run(int32_t coll, float* data, uint64_t n, bool poll) {
    hvd_buf buf = {data, 0, n * 4};
    hvd_coll_args a = {};
    a.hdr.struct_size = sizeof a;
    a.coll = coll;
    a.dtype = HVD_FLOAT32;
    a.n_bufs = coll == HVD_BARRIER ? 0 : 1;
    a.in = a.out = &buf;
    a.counts = &n;
    hvd_req request;
    hvd_rc rc = api->collective(comm, &a, &request, &error);
    if (rc == HVD_INPROGRESS) {
      while (poll && (rc = api->req_test(request, &error)) == HVD_INPROGRESS) {
      }
      if (!poll) rc = api->req_wait(request, HVD_NO_DEADLINE, &error);
      api->req_free(request);
    }
    if (rc == HVD_OK) return;
    std::fprintf(stderr, "collective: code %d: %s\n", rc, error.text);
    std::_Exit(1);
  }
};

int run_rank(const hvd_comm_api* api, int rank, int size, uint64_t largest, uint64_t smallest) {
  Bench b{api};
  b.error.hdr.struct_size = sizeof b.error;
  hvd_comm_args args = {};
  args.hdr.struct_size = sizeof args;
  args.key = "bench";
  args.rank = rank;
  args.size = size;
  if (api->create(&args, &b.comm, &b.error) != HVD_OK) {
    std::fprintf(stderr, "create: %s\n", b.error.text);
    return 1;
  }
  std::vector<float> data(largest / 4);
  if (rank == 0) {
    std::printf("%12s %12s %12s %10s %12s %8s\n", "bytes", "median us", "p10 us", "p10 GB/s", "cpu us", "sleeps");
  }
  for (uint64_t bytes = smallest; bytes <= largest; bytes *= 4) {
    const uint64_t n = bytes / 4;
    const int run = bytes <= 65536 ? 20 : 1;  // one alone would measure how well the barrier lets go
    const int iterations = bytes <= (4 << 20) ? 100 : 20;
    std::vector<double> times;
    rusage before, after;
    for (int i = -5; i < iterations; ++i) {
      if (i == 0) getrusage(RUSAGE_SELF, &before);
      std::fill_n(data.begin(), n, 1.0f);
      b.run(HVD_BARRIER, nullptr, 0, false);
      const int64_t t = now_ns();
      for (int j = 0; j < run; ++j) b.run(HVD_ALLREDUCE, data.data(), n, run > 1);
      if (i >= 0) times.push_back(static_cast<double>(now_ns() - t) / 1e3 / run);
      const float wanted = static_cast<float>(std::pow(size, run));
      if (data[0] != wanted || data[n - 1] != wanted) std::fprintf(stderr, "wrong result %g\n", data[n - 1]);
    }
    getrusage(RUSAGE_SELF, &after);
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], p10 = times[times.size() / 10];
    if (rank == 0) {
      std::printf("%12llu %12.1f %12.1f %10.2f %12.1f %8.1f\n", (unsigned long long)bytes, median, p10,
                  static_cast<double>(bytes) / p10 / 1e3,
                  (processor_us(after) - processor_us(before)) / iterations / run,
                  static_cast<double>(after.ru_nvcsw - before.ru_nvcsw) / iterations / run);
      std::fflush(stdout);
    }
  }
  b.run(HVD_BARRIER, nullptr, 0, false);
  api->destroy(b.comm, &b.error);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s path/to/libhvd_backend_tcp.so [ranks] [largest MiB] [smallest bytes]\n", argv[0]);
    return 2;
  }
  const int size = argc > 2 ? std::atoi(argv[2]) : 2;
  const uint64_t largest = (argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 64) << 20;
  const uint64_t smallest = argc > 4 ? std::strtoull(argv[4], nullptr, 10) / 4 * 4 : 4;
  g_shared =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
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
  const hvd_backend_api* table = nullptr;
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
  if (entry(&host, &table, nullptr) != HVD_OK) return 1;
  std::vector<pid_t> children;
  for (int r = 1; r < size; ++r) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(run_rank(table->comm, r, size, largest, smallest));
    children.push_back(child);
  }
  int rc = run_rank(table->comm, 0, size, largest, smallest);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    rc |= status;
  }
  return rc != 0;
}
