// Ranks as threads of one process, for sanitizers: operations of many sizes through the table, polled and waited for,
// then an abort from a thread of its own while they go on. Prints "passed" when every value was right.
//
//   threads_stress path/to/libhvd_backend_NAME.so ranks rounds
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "hvd/backend_abi.h"

namespace {

std::mutex g_mutex;
std::map<std::string, std::string> g_values;
std::atomic<int> g_wrong{0};

hvd_rc store_set(void*, const char* key, const void* p, uint64_t n, hvd_error*) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_values[key].assign(static_cast<const char*>(p), n);
  return HVD_OK;
}
hvd_rc store_get(void*, const char* key, void* p, uint64_t* n, int64_t, hvd_error*) {
  for (;; usleep(1000)) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    const auto found = g_values.find(key);
    if (found == g_values.end()) continue;
    const uint64_t room = *n;
    *n = found->second.size();
    if (*n > room) return HVD_E_INVALID;
    std::memcpy(p, found->second.data(), *n);
    return HVD_OK;
  }
}
hvd_rc store_del(void*, const char*, hvd_error*) { return HVD_OK; }
hvd_rc option(const char* key, char* text, uint64_t* n) {
  if (std::strcmp(key, "spin_us") != 0) return HVD_E_UNAVAILABLE;
  text[0] = '5';  // so that sleeping and waking happen often
  *n = 1;
  return HVD_OK;
}
void thread_enter(const char*) {}
void log_line(int32_t, const char*, int32_t, const char* text) { std::fprintf(stderr, "%s\n", text); }

struct Rank {
  const hvd_comm_api* api;
  int rank, size;
  hvd_comm comm = nullptr;
  hvd_error error{};

  hvd_rc run(int32_t coll, const std::vector<float>& in, std::vector<float>& out, uint64_t count, bool poll) {
    hvd_buf from = {const_cast<float*>(in.data()), 0, in.size() * 4}, to = {out.data(), 0, out.size() * 4};
    hvd_coll_args a = {};
    a.hdr.struct_size = sizeof a;
    a.coll = coll;
    a.dtype = HVD_FLOAT32;
    a.n_bufs = coll == HVD_BARRIER ? 0 : 1;
    a.in = &from;
    a.out = &to;
    a.counts = &count;
    hvd_req request;
    hvd_rc rc = api->collective(comm, &a, &request, &error);
    if (rc != HVD_INPROGRESS) return rc;
    while (poll && (rc = api->req_test(request, &error)) == HVD_INPROGRESS) std::this_thread::yield();
    if (!poll) rc = api->req_wait(request, HVD_NO_DEADLINE, &error);
    api->req_free(request);
    return rc;
  }

  void expect(bool right, const char* what) {
    if (!right && g_wrong.fetch_add(1) == 0) std::fprintf(stderr, "rank %d: %s: %s\n", rank, what, error.text);
  }

  void work(int rounds, std::atomic<hvd_comm>* to_abort) {
    error.hdr.struct_size = sizeof error;
    hvd_comm_args args = {};
    args.hdr.struct_size = sizeof args;
    args.key = "stress";
    std::vector<int32_t> members(static_cast<size_t>(size)), hosts(members.size());
    std::iota(members.begin(), members.end(), 0);
    args.ranks = members.data();
    args.hosts = hosts.data();
    args.rank = rank;
    args.size = size;
    expect(api->create(&args, &comm, &error) == HVD_OK, "create");
    if (comm == nullptr) return;
    const uint64_t counts[] = {1, 12, 13, 3000, 9000, 40000, 70000};
    for (int i = 0; i < rounds; ++i) {
      const uint64_t n = counts[i % 7];
      std::vector<float> in(n, static_cast<float>(rank + i)), out(n), all(n * static_cast<uint64_t>(size));
      expect(run(HVD_ALLREDUCE, in, out, n, i % 3 == 0) == HVD_OK, "allreduce");
      const float sum = static_cast<float>(size * (size - 1) / 2 + i * size);
      expect(out[0] == sum && out[n / 2] == sum && out[n - 1] == sum, "allreduce value");
      expect(run(HVD_BROADCAST, in, in, n, false) == HVD_OK, "broadcast");
      expect(in[n - 1] == static_cast<float>(i), "broadcast value");
      in.assign(n, static_cast<float>(rank));
      expect(run(HVD_ALLGATHER, in, all, n, i % 2 == 0) == HVD_OK, "allgather");
      expect(all[all.size() - 1] == static_cast<float>(size - 1) && all[0] == 0.0f, "allgather value");
      expect(run(HVD_BARRIER, in, out, 0, false) == HVD_OK, "barrier");
    }
    if (rank == 0) to_abort->store(comm);
    std::vector<float> data(50000, 0.0f);
    hvd_rc rc = HVD_OK;
    while (rc == HVD_OK) rc = run(HVD_ALLREDUCE, data, data, data.size(), false);
    // Ranks that share no memory with the one that aborts see that it has gone.
    const bool told = rc == HVD_E_ABORTED || (rank != 0 && rc == HVD_E_REMOTE);
    expect(told && api->async_error(comm, &error) == rc, "the end");
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
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
  host.thread_enter = thread_enter;
  const hvd_backend_api* table = nullptr;
  const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
  if (entry(&host, &table, nullptr) != HVD_OK) return 1;
  const int size = std::atoi(argv[2]), rounds = std::atoi(argv[3]);
  std::atomic<hvd_comm> to_abort{nullptr};
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back({table->comm, r, size});
  std::vector<std::thread> threads;
  for (Rank& rank : ranks) threads.emplace_back([&rank, rounds, &to_abort] { rank.work(rounds, &to_abort); });
  while (to_abort.load() == nullptr) usleep(1000);
  usleep(20000);
  table->comm->abort(to_abort.load(), nullptr);
  for (std::thread& t : threads) t.join();
  for (Rank& rank : ranks) table->comm->destroy(rank.comm, nullptr);
  if (g_wrong.load() == 0) std::puts("passed");
  return g_wrong.load() != 0;
}
