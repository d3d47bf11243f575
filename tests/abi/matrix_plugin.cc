// One backend for the old/new matrix, compiled against the real header and against a copy with a newer minor that
// tests/abi/test_old_new.py makes. In the newer one: coll_args.hint, coll_caps.latency_ns, error.retry_after_ns,
// option.since, copy_item.spread, the slots comm.echo and host.now.
#include "hvd/backend.hpp"

namespace {

#if HVD_ABI_MINOR >= 2
constexpr hvd_option with_since(hvd_option o, const char* since) {
  o.since = since;
  return o;
}
#else
constexpr hvd_option with_since(hvd_option o, const char*) { return o; }
#endif

struct Copier : hvd::Comm<Copier> {
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST;
  static constexpr hvd_option options[] = {
      with_since(hvd::make_option("first", "int", "1", "1..", "one"), "1.0"),
      with_since(hvd::make_option("second", "int", "2", "1..", "two"), "1.0"),
      with_since(hvd::make_option("third", "str", "x", "", "three"), "1.1"),
  };
  explicit Copier(const hvd::CommInit& init) : Comm(init) {}

  static hvd_coll_caps query(const hvd::Coll&) {
    hvd_coll_caps caps{};
    caps.support = HVD_NATIVE;
    caps.score = 5;
    caps.max_count = 1000;
#if HVD_ABI_MINOR >= 2
    caps.latency_ns = 77;
#endif
    return caps;
  }

  hvd::Work allreduce(const hvd::Coll& c) {
    if (c.out(0) != c.in(0)) std::memcpy(c.out(0), c.in(0), c.count(0) * c.element_bytes());
#if HVD_ABI_MINOR >= 2
    auto* bytes = static_cast<unsigned char*>(c.out(0));
    for (uint64_t i = 0; i < c.count(0) * c.element_bytes(); ++i) bytes[i] += static_cast<unsigned char>(c.args().hint);
#endif
    return hvd::Work::done();
  }
};

// Always fails, and fills every field of the error struct.
hvd_rc failing(hvd_comm c, const hvd_coll_args* args, hvd_req* out, hvd_error* error) {
  if (args->coll != HVD_BROADCAST) return hvd::CommTable<Copier>::table()->collective(c, args, out, error);
  hvd_error mine;
  std::memset(&mine, 0x11, sizeof(mine));
  mine.code = HVD_E_REMOTE;
  std::strcpy(mine.text, "peer gone");
#if HVD_ABI_MINOR >= 2
  mine.retry_after_ns = 5;
#endif
  hvd::give(error, mine);
  return HVD_E_REMOTE;
}

#if HVD_ABI_MINOR >= 2
hvd_rc echo(hvd_comm, int64_t x, int64_t* out, hvd_error*) {
  *out = x;
  return HVD_OK;
}
#endif

hvd_rc copy_all(hvd_stream, const hvd_copy_item* items, uint64_t n, hvd_error* error) {
  return hvd::guarded(error, [&]() -> hvd_rc {
    for (uint64_t i = 0; i < n; ++i) {
      const hvd_copy_item item = hvd::complete(hvd::element(items, i), "hvd_copy_item");
      std::memcpy(item.dst.base, item.src.base, item.count);
    }
    return HVD_OK;
  });
}

template <class... A>
hvd_rc unserved(A...) {
  return HVD_E_UNSUPPORTED;
}

struct Cpu {
  static const hvd_device_api* table() {
    static const hvd_device_api api = [] {
      hvd_device_api t;
      std::memset(&t, 0, sizeof(t));
      t.hdr = {sizeof(t), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
      t.device_type = "cpu";
      t.count = unserved;
      t.open = unserved;
      t.close = unserved;
      t.props = unserved;
      t.copy = unserved;
      t.batched_copy_scale = copy_all;
      return t;
    }();
    return &api;
  }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) hvd_rc hvd_backend_entry_v1(const hvd_host_api* host,
                                                                              const hvd_backend_api** out, hvd_error*) {
  hvd::host = host;
  static hvd_comm_api comm = *hvd::CommTable<Copier>::table();
  static hvd_backend_api api = *hvd::backend_table<Cpu, Copier>("matrix");
  comm.collective = failing;
  api.version = "no now";
#if HVD_ABI_MINOR >= 2
  comm.echo = echo;
  if (HVD_HAS(host, hvd_host_api, now)) api.version = "now";
#endif
  api.comm = &comm;
  *out = &api;
  return HVD_OK;
}
