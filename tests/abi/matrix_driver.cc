// The host's side of the old/new matrix; see matrix_plugin.cc. matrix_driver LIBRARY MINOR_OF_THE_LIBRARY
#include <cstdlib>
#include <cstring>

#include "engine/plugins/loader.h"
#include "support.h"

using hvd::plugins::Backend;
using hvd::plugins::Collective;
using test::check;
using test::contains;

namespace {

// An out-struct followed by bytes that must not change.
template <class T>
struct Guarded {
  T value;
  uint64_t wire;
  Guarded() : wire(0xFEEDFACE) {
    std::memset(&value, 0, sizeof(value));
    value.hdr = {sizeof(T), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  }
  bool whole() const { return wire == 0xFEEDFACE; }
};

hvd_coll_args one_buffer(int32_t coll, hvd_buf* in, hvd_buf* out, uint64_t* count) {
  Collective c;
  c.coll = coll;
  c.dtype = HVD_UINT8;
  hvd_coll_args args = c.args();
  args.n_bufs = 1;
  args.in = in;
  args.out = out;
  args.counts = count;
  return args;
}

void slots(const hvd_backend_api* api, int minor) {
#if HVD_ABI_MINOR >= 2
  check(!!HVD_HAS(api->comm, hvd_comm_api, echo) == (minor >= 2), "the new slot is there exactly with a new plugin");
  if (HVD_HAS(api->comm, hvd_comm_api, echo)) {
    int64_t x = 0;
    check(api->comm->echo(nullptr, 42, &x, nullptr) == HVD_OK && x == 42, "the new slot works");
  }
#else
  check((api->comm->hdr.struct_size > sizeof(hvd_comm_api)) == (minor >= 2), "a new plugin's table is longer");
#endif
}

void arguments(const hvd_comm_api* api, hvd_comm comm, int minor) {
  std::vector<uint8_t> in(4, 10), out(4);
  hvd_buf i = test::buffer(in), o = test::buffer(out);
  uint64_t n = 4;
  hvd_coll_args args = one_buffer(HVD_ALLREDUCE, &i, &o, &n);
  Guarded<hvd_error> error;
  hvd_req request = nullptr;
  check(api->collective(comm, &args, &request, &error.value) == HVD_OK && out[3] == 10, "zero keeps the old behaviour");
#if HVD_ABI_MINOR >= 2
  args.hint = 3;
  const hvd_rc rc = api->collective(comm, &args, &request, &error.value);
  if (minor >= 2) {
    check(rc == HVD_OK && out[3] == 13, "a new argument reaches a new plugin");
  } else {
    check(rc == HVD_E_UNSUPPORTED && contains(error.value.text, "hvd_coll_args uses a field newer"),
          "an old plugin refuses a new argument that is set");
  }
#else
  (void)minor;
#endif
  check(error.whole(), "error: nothing behind it is touched");
}

void out_structs(const hvd_comm_api* api, hvd_comm comm, int minor) {
  uint64_t n = 0;
  hvd_buf empty{};
  hvd_coll_args args = one_buffer(HVD_ALLREDUCE, &empty, &empty, &n);
  Guarded<hvd_coll_caps> caps;
  Guarded<hvd_error> error;
  check(api->query(nullptr, &args, &caps.value, &error.value) == HVD_OK, "query");
  check(caps.whole() && caps.value.max_count == 1000 && caps.value.hdr.struct_size == sizeof(hvd_coll_caps), "caps");
  args.coll = HVD_BROADCAST;
  hvd_req request = nullptr;
  check(api->collective(comm, &args, &request, &error.value) == HVD_E_REMOTE, "the failing call fails");
  check(error.whole() && std::string(error.value.text) == "peer gone", "error");
#if HVD_ABI_MINOR >= 2
  check(caps.value.latency_ns == (minor >= 2 ? 77u : 0u), "a new field of an out-struct: filled or zero");
  check(error.value.retry_after_ns == (minor >= 2 ? 5 : 0), "likewise in the error");
#else
  (void)minor;
#endif
}

void arrays(const hvd_device_api* api, int minor) {
  char from[] = "abc", to[4] = {};
  hvd_copy_item items[3];
  std::memset(items, 0, sizeof(items));
  for (int k = 0; k < 3; ++k) {
    items[k].hdr = {sizeof(hvd_copy_item), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
    items[k].src = {from + k, 0, 1};
    items[k].dst = {to + 2 - k, 0, 1};
    items[k].count = 1;
  }
  Guarded<hvd_error> error;
  check(api->batched_copy_scale(nullptr, items, 3, &error.value) == HVD_OK && std::string(to) == "cba",
        "array of items");
#if HVD_ABI_MINOR >= 2
  items[2].spread = 1;
  const hvd_rc rc = api->batched_copy_scale(nullptr, items, 3, &error.value);
  check(rc == (minor >= 2 ? HVD_OK : HVD_E_UNSUPPORTED), "a new field in the last item: obeyed or refused");
#else
  (void)minor;
#endif
}

// A host with the newer host slot, for a plugin that may know it.
void host_slot(hvd_backend_entry_fn entry, int minor) {
#if HVD_ABI_MINOR >= 2
  static hvd_host_api host;
  host.hdr = {sizeof(host), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  host.now = [] { return int64_t{1}; };
  const hvd_backend_api* api = nullptr;
  check(entry(&host, &api, nullptr) == HVD_OK && std::string(api->version) == (minor >= 2 ? "now" : "no now"),
        "a new host slot is seen by a new plugin only");
#else
  (void)entry;
  (void)minor;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int minor = std::atoi(argv[2]);
  host_slot(hvd::plugins::open_library(argv[1], "matrix"), minor);
  auto backend = Backend::load_library(argv[1], "matrix");
  check(backend->abi_minor() == minor, "the minor is reported");
  check(backend->version() == "no now", "a host slot that is absent is seen as absent");
  const auto& options = backend->options();
  check(options.size() == 3 && options[0].name == "first" && options[1].doc == "two" && options[2].fallback == "x",
        "array of options");
  test::MapStore store;
  auto comm = test::join_comm(*backend, store, "matrix", 0, 1);
  slots(hvd::plugins::handshake(hvd::plugins::open_library(argv[1], "matrix"), "matrix", argv[1]), minor);
  arguments(backend->comm_api(), comm->handle(), minor);
  out_structs(backend->comm_api(), comm->handle(), minor);
  arrays(backend->device_api(), minor);
  return test::verdict();
}
