// A backend without a device table whose communicators work on foreign devices, like a library that supports several
// vendors' memory. The shm backend moves the data; only the slots of the table that opened the device reach its memory.
//
// Options: shm (path of its library), reads (device types whose memory is read on this machine, such as "fake_stream";
// none: communicators for devices can be made and serve nothing), lacks (the number of an element type that is served
// on host memory only).
#include <dlfcn.h>

#include <cstdlib>

#include "hvd/backend.hpp"

namespace {

struct Memory {
  hvd_mem mem = nullptr;
  hvd_buf buf{};
};

// The shm backend's communicators.
const hvd_comm_api* shm() {
  static const hvd_comm_api* const table = [] {
    void* library = dlopen(hvd::option("shm", "").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw hvd::Error(HVD_E_UNAVAILABLE, dlerror());
    const hvd_backend_api* api = nullptr;
    const auto entry = reinterpret_cast<hvd_backend_entry_fn>(dlsym(library, "hvd_backend_entry_v1"));
    if (entry == nullptr || entry(hvd::host, &api, nullptr) != HVD_OK) throw hvd::Error(HVD_E_UNAVAILABLE, "no shm");
    return api->comm;
  }();
  return table;
}

// Calls a slot and throws its error.
template <class F>
hvd_rc checked(F&& call) {
  hvd_error error;
  std::memset(&error, 0, sizeof(error));
  error.hdr = {sizeof(error), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  const hvd_rc rc = call(&error);
  if (rc != HVD_OK && rc != HVD_INPROGRESS) throw hvd::Error(rc, error.text, error.flags, error.vendor_code);
  return rc;
}

bool reads(const char* type) { return ("," + hvd::option("reads", "") + ",").find("," + std::string(type) + ",") + 1; }

struct ForeignComm : hvd::Comm<ForeignComm> {
  static constexpr uint64_t caps =
      HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_MEM_DEVICE | HVD_CAP_ONE_HOST | HVD_CAP_VECTORED;
  static constexpr const char* device_types = "cpu,fake_stream,fake_sync";
  static constexpr const char* version = "0.1";
  static constexpr hvd_option options[] = {
      hvd::make_option("shm", "path", "", "", "the library of the shm backend"),
      hvd::make_option("reads", "str", "", "", "device types whose memory is read"),
      hvd::make_option("lacks", "int", "-1", "-1..14", "an element type that is served on host memory only"),
  };

  explicit ForeignComm(const hvd::CommInit& init) : Comm(init), device(init.device), api(init.device_api) {
    hvd_comm_args args;
    std::memset(&args, 0, sizeof(args));
    args.hdr = {sizeof(args), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    args.key = init.key.c_str();
    args.store = init.store.handle();
    args.ranks = init.ranks.data();
    args.hosts = init.hosts.data();
    args.rank = init.rank;
    args.size = init.size;
    args.deadline_ns = init.deadline_ns;
    args.notify_token = init.notify_token;
    checked([&](hvd_error* e) { return shm()->create(&args, &inner, e); });
    if (api) checked([&](hvd_error* e) { return api->stream_create(device, 0, &stream, e); });
  }
  ~ForeignComm() {
    if (stream) api->stream_destroy(stream, nullptr);
    shm()->destroy(inner, nullptr);
  }

  static hvd_coll_caps query(const hvd::Coll& c) {
    hvd_coll_caps caps{};
    caps.hdr = {sizeof(caps), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    checked([&](hvd_error* e) { return shm()->query(nullptr, &c.args(), &caps, e); });
    return caps;
  }
  hvd_coll_caps query_made(const hvd::Coll& c) const {
    if (api && !reads(api->device_type)) {
      throw hvd::Error(HVD_E_UNSUPPORTED,
                       std::string("the foreign_device reads no ") + api->device_type + " memory here");
    }
    if (api && std::to_string(c.dtype()) == hvd::option("lacks", "-1")) return {};
    return query(c);
  }
  static std::string info(const std::string& key) { return key == "device_memory" ? hvd::option("reads", "") : ""; }

  void abort() { shm()->abort(inner, nullptr); }

  hvd::Work allreduce(const hvd::Coll& c) { return start(c); }
  hvd::Work broadcast(const hvd::Coll& c) { return start(c); }
  hvd::Work allgather(const hvd::Coll& c) { return start(c); }
  hvd::Work alltoall(const hvd::Coll& c) { return start(c); }
  hvd::Work reducescatter(const hvd::Coll& c) { return start(c); }
  hvd::Work barrier(const hvd::Coll& c) { return start(c); }
  hvd::Work start(const hvd::Coll& c);

  Memory pinned(uint64_t bytes) {
    Memory m;
    checked([&](hvd_error* e) { return api->mem_alloc(device, HVD_MEM_PINNED, bytes, &m.mem, &m.buf, e); });
    return m;
  }
  void copy(const hvd_buf& to, const hvd_buf& from, uint64_t bytes) {
    if (bytes) checked([&](hvd_error* e) { return api->copy(stream, to, from, bytes, e); });
  }
  void sync() {
    checked([&](hvd_error* e) { return api->stream_sync(stream, HVD_NO_DEADLINE, e); });
  }

  hvd_comm inner = nullptr;
  hvd_device device;
  const hvd_device_api* api;
  hvd_stream stream = nullptr;
};

struct StagedRequest : hvd::Request {
  explicit StagedRequest(ForeignComm* comm) : comm(comm) {}
  ~StagedRequest() override {
    if (request) shm()->req_free(request);
    for (const Memory& m : staging) comm->api->mem_free(m.mem, nullptr);
  }
  bool settle(hvd_rc rc) {
    if (rc == HVD_INPROGRESS) return false;
    for (const auto& [to, from] : results) comm->copy(to, from, from.bytes);
    if (!results.empty()) comm->sync();
    return true;
  }
  bool test() override {
    return settle(checked([&](hvd_error* e) { return shm()->req_test(request, e); }));
  }
  bool wait(int64_t deadline_ns) override {
    return settle(checked([&](hvd_error* e) { return shm()->req_wait(request, deadline_ns, e); }));
  }

  ForeignComm* comm;
  hvd_req request = nullptr;
  std::vector<Memory> staging;
  std::vector<std::pair<hvd_buf, hvd_buf>> results;
};

// On a device: copies both buffers as a whole to separate host memory.
hvd::Work ForeignComm::start(const hvd::Coll& c) {
  hvd_coll_args args = c.args();
  auto request = std::make_unique<StagedRequest>(this);
  std::vector<hvd_buf> in, out;
  for (uint64_t i = 0; api && i < args.n_bufs; ++i) {
    const bool in_place = args.in[i].base == args.out[i].base && args.in[i].offset == args.out[i].offset;
    const bool has_in = args.in[i].base != nullptr && (args.coll != HVD_BROADCAST || args.root == rank());
    hvd_buf given = args.in[i], taken = args.out[i];
    if (in_place) given.bytes = taken.bytes = std::max(given.bytes, taken.bytes);
    request->staging.push_back(pinned(given.bytes));
    in.push_back(request->staging.back().buf);
    if (has_in || in_place) copy(in.back(), given, given.bytes);
    if (!in_place) request->staging.push_back(pinned(taken.bytes));
    out.push_back(taken.base ? request->staging.back().buf : hvd_buf{});
    if (taken.base && taken.bytes) request->results.emplace_back(taken, out.back());
  }
  if (api) {
    sync();
    args.in = in.data();
    args.out = out.data();
    args.stream = nullptr;
  }
  const hvd_rc rc = checked([&](hvd_error* e) { return shm()->collective(inner, &args, &request->request, e); });
  if (request->settle(rc)) return hvd::Work::done();
  return hvd::Work(std::move(request));
}

}  // namespace

HVD_BACKEND(foreign_device, hvd::NoDevice, ForeignComm)
