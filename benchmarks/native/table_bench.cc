// Times a communication backend through its C table alone: no engine, no agreement between ranks, no Python in the
// timed part. The rest of the difference to the bare loop is the backend's; the cost of hvd.allreduce_ beyond this
// is the engine's. Compiled on the fly against hvd_core/include only; loaded by benchmarks/workers/native.py, one
// thread per rank. The host side it gives the backend is the least that works: a key-value store in shared memory.
#include <dlfcn.h>
#include <hvd/backend_abi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "spin.h"

namespace hvd::bench {
namespace {

constexpr uint64_t kEntries = 256, kKeyBytes = 256, kValueBytes = 1024;

struct Entry {
  std::atomic<uint32_t> used;
  uint32_t bytes;
  char key[kKeyBytes], value[kValueBytes];
};

struct Store {  // after the barrier page of the mapping, zeroed by its maker
  std::atomic<uint32_t> locked;
  Entry entries[kEntries];
};

class Locked {
 public:
  explicit Locked(Store* store) : store_(store) {
    while (store_->locked.exchange(1, std::memory_order_acquire)) sched_yield();
  }
  ~Locked() { store_->locked.store(0, std::memory_order_release); }

  Entry* find(const char* key) {
    for (auto& entry : store_->entries) {
      if (entry.used && !std::strncmp(entry.key, key, kKeyBytes)) return &entry;
    }
    return nullptr;
  }

  Entry* find_or_make(const char* key) {
    if (Entry* entry = find(key)) return entry;
    for (auto& entry : store_->entries) {
      if (entry.used) continue;
      entry.used = 1;
      entry.bytes = 0;
      std::snprintf(entry.key, kKeyBytes, "%s", key);
      return &entry;
    }
    return nullptr;
  }

 private:
  Store* store_;
};

hvd_rc fail(hvd_error* err, hvd_rc code, const std::string& text) {
  if (err && err->hdr.struct_size >= sizeof(hvd_error)) {
    err->code = code;
    std::snprintf(err->text, sizeof err->text, "%s", text.c_str());
  }
  return code;
}

hvd_rc store_set(void* store, const char* key, const void* p, uint64_t n, hvd_error* err) {
  Locked locked(static_cast<Store*>(store));
  Entry* entry = n <= kValueBytes && std::strlen(key) < kKeyBytes ? locked.find_or_make(key) : nullptr;
  if (!entry) return fail(err, HVD_E_NOMEM, std::string("benchmark store: no room for ") + key);
  std::memcpy(entry->value, p, n);
  entry->bytes = static_cast<uint32_t>(n);
  return HVD_OK;
}

hvd_rc store_get(void* store, const char* key, void* p, uint64_t* n, int64_t deadline_ns, hvd_error* err) {
  int64_t deadline = deadline_ns ? deadline_ns : now_ns() + 30000000000;
  for (;;) {
    {
      Locked locked(static_cast<Store*>(store));
      if (Entry* entry = locked.find(key)) {
        if (*n < entry->bytes) return fail(err, HVD_E_INVALID, std::string("buffer too small for ") + key);
        std::memcpy(p, entry->value, entry->bytes);
        *n = entry->bytes;
        return HVD_OK;
      }
    }
    if (now_ns() > deadline) return fail(err, HVD_E_TIMEOUT, std::string("no rank has set the key ") + key);
    timespec nap{0, 1000000};
    nanosleep(&nap, nullptr);
  }
}

hvd_rc store_add(void* store, const char* key, int64_t delta, int64_t* now, hvd_error* err) {
  Locked locked(static_cast<Store*>(store));
  Entry* entry = locked.find_or_make(key);
  if (!entry) return fail(err, HVD_E_NOMEM, std::string("benchmark store: no room for ") + key);
  int64_t value = 0;
  if (entry->bytes) std::memcpy(&value, entry->value, sizeof value);
  value += delta;
  std::memcpy(entry->value, &value, sizeof value);
  entry->bytes = sizeof value;
  *now = value;
  return HVD_OK;
}

hvd_rc store_del(void* store, const char* key, hvd_error*) {
  Locked locked(static_cast<Store*>(store));
  if (Entry* entry = locked.find(key)) entry->used = 0;
  return HVD_OK;
}

void log_text(int32_t level, const char* file, int32_t line, const char* text) {
  if (level >= HVD_LOG_WARN) std::fprintf(stderr, "%s:%d: %s\n", file, line, text);
}
hvd_rc option(const char*, char*, uint64_t*) { return HVD_E_UNAVAILABLE; }
void thread_enter(const char*) {}
void activity(hvd_comm, uint64_t, const char*, int32_t) {}
void notify(void*) {}

hvd_hdr header(uint64_t bytes) { return {static_cast<uint32_t>(bytes), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr}; }

const hvd_host_api kHost = {header(sizeof(hvd_host_api)),
                            log_text,
                            store_set,
                            store_get,
                            store_add,
                            store_del,
                            option,
                            thread_enter,
                            activity,
                            notify};

struct Table {
  const hvd_comm_api* comm = nullptr;
  hvd_comm handle = nullptr;
  hvd_error err{};
  uint64_t seq = 0;
};

// Sums one buffer in place. Returns the first code that is neither success nor progress.
hvd_rc allreduce(Table& t, float* data, uint64_t count) {
  hvd_buf buffer{data, 0, count * sizeof(float)};
  hvd_coll_args args{};
  args.hdr = header(sizeof args);
  args.coll = HVD_ALLREDUCE;
  args.dtype = HVD_FLOAT32;
  args.op = HVD_SUM;
  args.n_bufs = 1;
  args.in = args.out = &buffer;
  args.counts = &count;
  args.deadline_ns = HVD_NO_DEADLINE;
  args.seq = ++t.seq;
  hvd_req req = nullptr;
  hvd_rc rc = t.comm->collective(t.handle, &args, &req, &t.err);
  if (rc == HVD_INPROGRESS) {
    int64_t deadline = now_ns() + 60000000000;
    do rc = t.comm->req_wait(req, deadline, &t.err);
    while (rc == HVD_INPROGRESS);
  }
  if (req) t.comm->req_free(req);
  return rc;
}

}  // namespace
}  // namespace hvd::bench

using hvd::bench::Table;

extern "C" {

uint64_t table_shared_bytes() { return hvd::bench::kBarrierBytes + sizeof(hvd::bench::Store); }

// Returns NULL and fills `text` (of `text_bytes`) when the backend cannot be loaded or its communicator not made.
void* table_open(const char* path, void* mapping, int rank, int size, char* text, uint64_t text_bytes) {
  auto refuse = [&](const std::string& what) -> void* {
    std::snprintf(text, text_bytes, "%s", what.c_str());
    return nullptr;
  };
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return refuse(std::string("dlopen: ") + dlerror());
  auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
  if (!entry) return refuse(std::string(path) + " exports no hvd_backend_entry_v1");
  auto* table = new Table;
  table->err.hdr = hvd::bench::header(sizeof(hvd_error));
  const hvd_backend_api* api = nullptr;
  hvd_rc rc = entry(&hvd::bench::kHost, &api, &table->err);
  if (rc != HVD_OK || !api || !api->comm) return refuse(std::string("entry failed: ") + table->err.text);
  table->comm = api->comm;
  int32_t ranks[hvd::bench::kMaxRanks], hosts[hvd::bench::kMaxRanks] = {};
  for (int q = 0; q < size; q++) ranks[q] = q;
  hvd_comm_args args{};
  args.hdr = hvd::bench::header(sizeof args);
  args.key = "benchmark/table";
  args.store = static_cast<char*>(mapping) + hvd::bench::kBarrierBytes;
  args.ranks = ranks;
  args.hosts = hosts;
  args.rank = rank;
  args.size = size;
  args.deadline_ns = hvd::bench::now_ns() + 30000000000;
  rc = table->comm->create(&args, &table->handle, &table->err);
  while (rc == HVD_INPROGRESS) rc = table->comm->create_test(table->handle, &table->err);
  if (rc != HVD_OK) return refuse(std::string("create failed: ") + table->err.text);
  return table;
}

// Both return 0 or the code of the first failed collective; table_error says what happened.
int table_once(void* table, float* data, uint64_t count) {
  return hvd::bench::allreduce(*static_cast<Table*>(table), data, count);
}

int table_timed(void* table, void* mapping, int rank, int size, float* data, uint64_t count, int iters, int64_t* start,
                int64_t* end) {
  hvd_rc failed = HVD_OK;
  hvd::bench::timed_loop(*static_cast<hvd::bench::Barrier*>(mapping), rank, size, data, count, iters, start, end, [&] {
    if (failed == HVD_OK) failed = hvd::bench::allreduce(*static_cast<Table*>(table), data, count);
  });
  return failed;
}

const char* table_error(void* opaque) { return static_cast<Table*>(opaque)->err.text; }

void table_close(void* opaque) {
  auto* table = static_cast<Table*>(opaque);
  table->comm->finalize(table->handle, hvd::bench::now_ns() + 5000000000, &table->err);
  table->comm->destroy(table->handle, &table->err);
  delete table;
}
}
