// hvd::Device, and hvd::Comm with a device, called through their tables: which slots are NULL, the arguments of the
// vendor's methods, exceptions, and the current device of each thread.
#include <thread>

#include "device_sugar.h"

using test::contains;

namespace {

hvd_error g_error;
hvd_error* error() {
  std::memset(&g_error, 0, sizeof(g_error));
  g_error.hdr = {sizeof(g_error), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  return &g_error;
}

#define SLOT(table, name) HVD_HAS(table, hvd_device_api, name)

template <class T>
std::string slots() {
  const hvd_device_api* t = hvd::DeviceTable<T>::table();
  std::string found;
#define REQUIRED true
#define OPTIONAL false
#define GROUP(g) false
#define HVD_SLOT_host(name, need)
#define HVD_SLOT_comm(name, need)
#define HVD_SLOT_backend(name, need)
#define HVD_SLOT_device(name, need)                                          \
  if (SLOT(t, name)) found += std::string(found.empty() ? "" : " ") + #name; \
  check(SLOT(t, name) || !(need), "required slot " #name);
#define HVD_SLOT(table, name, since, need) HVD_SLOT_##table(name, need)
#include <hvd/backend_slots.inc>
  return found;
}

void subsets() {
  const std::string base = "count open close props";
  check(slots<Minimal>() == base + " copy", slots<Minimal>());
  check(slots<WithStreams>() == base + " stream_create stream_wrap stream_native stream_sync stream_destroy copy",
        slots<WithStreams>());
  check(slots<WithEvents>() == base +
                                   " stream_create stream_wrap stream_native stream_sync stream_destroy event_create "
                                   "event_record event_query event_destroy copy",
        slots<WithEvents>());
  check(slots<WithMemory>() == base + " mem_alloc mem_free copy", slots<WithMemory>());
  check(slots<WithNumbers>() == base + " stream_create stream_sync stream_destroy copy", slots<WithNumbers>());
  check(slots<Full>() == base +
                             " stream_create stream_wrap stream_native stream_wait_event stream_query stream_sync "
                             "stream_destroy event_create event_record event_query event_wait event_elapsed_ns "
                             "event_destroy mem_alloc mem_free mem_query copy batched_copy_scale reduce_local",
        slots<Full>());
  const hvd_comm_api* comm = hvd::CommTable<FullComm>::table();
  check(comm->caps == (FullComm::caps | HVD_CAP_ABORT | HVD_CAP_GROUP_SAME), "groups and abort are declared");
  check(std::string(comm->device_types) == "toy", "the device's type");
  check(comm->split && comm->group_begin && comm->group_end && comm->mem_register && comm->mem_deregister,
        "comm slots");
  check(!comm->req_test && !comm->req_wait && !comm->req_free && !comm->id_bytes && !comm->create_test, "comm, absent");
}

const hvd_device_api* table() { return hvd::DeviceTable<Full>::table(); }

hvd_device opened(int32_t ordinal, void* context = nullptr) {
  hvd_device d = nullptr;
  check(table()->open(ordinal, context, &d, error()) == HVD_OK, "open");
  return d;
}

void devices() {
  int32_t n = 0;
  hvd_device d = nullptr;
  check(table()->count(&n, error()) == HVD_OK && n == 2, "count");
  check(table()->open(2, nullptr, &d, error()) == HVD_E_INVALID && d == nullptr, "there is no third device");
  check(contains(g_error.text, "there is no toy device 2; this process sees 2"), g_error.text);
  int context = 0;
  d = opened(1, &context);
  check(reinterpret_cast<Full*>(d)->context == &context, "the native context");

  // A host that knows less of the struct gets less of it.
  hvd_device_props props;
  std::memset(&props, 0xee, sizeof(props));
  props.hdr = {static_cast<uint32_t>(offsetof(hvd_device_props, pci)), 1, 0, nullptr};
  check(table()->props(d, &props, error()) == HVD_OK && props.alignment == 64 && props.numa_node == -1, "props");
  check(static_cast<unsigned char>(props.arch[0]) == 0xee, "nothing is written beyond what the host knows");
  props.hdr.struct_size = sizeof(props);
  check(table()->props(d, &props, error()) == HVD_OK && std::strlen(props.arch) == sizeof(props.arch) - 1, "arch");

  hvd_mem m = nullptr;
  hvd_buf b{};
  check(table()->mem_alloc(d, HVD_MEM_PINNED, 0, &m, &b, error()) == HVD_OK && b.base && b.bytes == 0, "no bytes");
  check(table()->mem_free(m, error()) == HVD_OK, "mem_free");
  int32_t kind = 0, ordinal = 0;
  check(table()->mem_query(&b, &kind, &ordinal, error()) == HVD_OK && kind == HVD_MEM_DEVICE && ordinal == 1, "query");
  check(table()->mem_query(nullptr, &kind, &ordinal, error()) == HVD_E_UNSUPPORTED, "query may not know");
  check(table()->close(d, error()) == HVD_OK, "close");
  check(table()->close(nullptr, error()) == HVD_E_INVALID, "a NULL handle");
  check(contains(g_error.text, "the device is NULL"), g_error.text);
}

void streams_and_events() {
  const hvd_device d = opened(0);
  Full& full = *reinterpret_cast<Full*>(d);
  hvd_stream own = nullptr, wrapped = nullptr;
  check(table()->stream_create(d, 7, &own, error()) == HVD_OK, "stream_create");
  void* native = table()->stream_native(own);
  check(static_cast<Toy*>(native)->calls == 7 && hvd::native_stream<Full>(own) == native, "native");
  check(table()->stream_wrap(d, native, &wrapped, error()) == HVD_OK, "stream_wrap");
  check(table()->stream_native(wrapped) == native, "a wrapped stream is the stream");
  check(table()->stream_destroy(wrapped, error()) == HVD_OK && full.destroyed == 0, "only the wrapper goes");
  check(table()->stream_wrap(d, nullptr, &wrapped, error()) == HVD_OK && wrapped != nullptr, "the default stream");
  check(table()->stream_destroy(wrapped, error()) == HVD_OK, "and its wrapper");

  full.ready = false;
  check(table()->stream_query(own, error()) == HVD_INPROGRESS, "stream_query");
  check(table()->stream_sync(own, 1, error()) == HVD_E_TIMEOUT, "stream_sync after its deadline");

  hvd_event e = nullptr, f = nullptr;
  int64_t ns = 0;
  check(table()->event_create(d, 0, &e, error()) == HVD_OK && table()->event_create(d, 0, &f, error()) == HVD_OK, "");
  check(table()->event_query(e, error()) == HVD_OK, "done before the first record");
  check(table()->event_wait(e, 1, error()) == HVD_OK, "and nothing to wait for");
  check(table()->stream_wait_event(own, e, error()) == HVD_OK && full.waits == 0, "not for a stream either");
  check(table()->event_record(e, own, error()) == HVD_OK, "record");
  check(table()->event_query(e, error()) == HVD_INPROGRESS, "not yet");
  check(table()->event_wait(e, 1, error()) == HVD_INPROGRESS, "the wait's deadline is not the event's");
  check(table()->stream_wait_event(own, e, error()) == HVD_OK && full.waits == 1, "the stream waits");
  check(table()->event_elapsed_ns(e, f, &ns, error()) == HVD_E_INVALID, "one was never recorded");
  full.ready = true;
  check(table()->event_query(e, error()) == HVD_OK, "done");
  check(table()->event_record(f, own, error()) == HVD_OK, "record");
  check(table()->event_elapsed_ns(e, f, &ns, error()) == HVD_OK && ns == 77, "elapsed");
  check(table()->event_record(e, nullptr, error()) == HVD_E_INVALID, "a NULL stream");

  char room[64];
  const hvd_buf small{room, 0, 8}, large{room, 0, 64};
  check(table()->copy(own, small, large, 9, error()) == HVD_E_INVALID, "a copy that is too large");
  check(contains(g_error.text, "9 bytes asked for between buffers of 8 and 64"), g_error.text);
  check(table()->copy(own, small, large, 0, error()) == HVD_OK && full.copied == 0, "nothing to copy");
  check(table()->copy(own, small, large, 8, error()) == HVD_OK && full.copied == 8, "copy");
  check(table()->reduce_local(own, small, large, 3, HVD_FLOAT32, HVD_SUM, error()) == HVD_E_INVALID, "too large");
  check(table()->reduce_local(own, large, large, 3, 99, HVD_SUM, error()) == HVD_E_INVALID, "no such type");
  check(table()->reduce_local(own, large, large, 3, HVD_FLOAT32, HVD_SUM, error()) == HVD_OK, "reduce_local");

  // Items of a newer host are longer; a field that this side does not know must be zero.
  struct Longer {
    hvd_copy_item item;
    uint64_t news;
  } items[3];
  std::memset(items, 0, sizeof(items));
  for (Longer& x : items) {
    x.item.hdr = {sizeof(Longer), 1, 9, nullptr};
    x.item.count = 10;
  }
  items[2].item.scale = 0.5;
  check(table()->batched_copy_scale(own, &items[0].item, 3, error()) == HVD_OK && full.scales == 25, "batched");
  items[1].news = 1;
  check(table()->batched_copy_scale(own, &items[0].item, 3, error()) == HVD_E_UNSUPPORTED, "a newer field");

  for (hvd_event x : {e, f}) check(table()->event_destroy(x, error()) == HVD_OK, "event_destroy");
  check(table()->stream_destroy(own, error()) == HVD_OK && full.destroyed == 1, "stream_destroy");
  table()->close(d, error());
}

hvd_comm_args comm_args(hvd_device d) {
  static const int32_t zero = 0;
  hvd_comm_args a;
  std::memset(&a, 0, sizeof(a));
  a.hdr = {sizeof(a), 1, 0, nullptr};
  a.key = "a key";
  a.ranks = a.hosts = &zero;
  a.size = 1;
  a.device = d;
  return a;
}

void current_device_on_every_thread() {
  const hvd_device d = opened(1);
  const hvd_comm_api* comm = hvd::CommTable<FullComm>::table();
  const hvd_comm_args args = comm_args(d);
  hvd_comm c = nullptr, half = nullptr;
  hvd_stream s = nullptr;
  check(table()->stream_create(d, 7, &s, error()) == HVD_OK, "stream");
  check(comm->create(&args, &c, error()) == HVD_OK && g_seen == 1 && t_current == 0, "create, and back");
  const auto everything = [&](int before) {
    t_current = before;
    hvd_coll_args call;
    std::memset(&call, 0, sizeof(call));
    call.hdr = {sizeof(call), 1, 0, nullptr};
    call.dtype = HVD_FLOAT32;
    call.stream = s;
    check(comm->collective(c, &call, nullptr, error()) == HVD_OK && g_seen == 1, g_error.text);
    check(comm->group_begin(c, error()) == HVD_OK && comm->group_end(c, error()) == HVD_OK, "groups");
    void* registered = nullptr;
    check(comm->mem_register(c, {&call, 0, 8}, &registered, error()) == HVD_OK && registered == &call, "register");
    check(comm->mem_deregister(c, registered, error()) == HVD_OK, "deregister");
    check(comm->async_error(c, error()) == HVD_OK && comm->finalize(c, 0, error()) == HVD_OK, "the rest");
    call.stream = nullptr;
    check(comm->collective(c, &call, nullptr, error()) == HVD_E_INVALID, "no stream");
    check(t_current == before, "the thread's own device is current again");
  };
  everything(0);
  std::thread(everything, 5).join();
  check(comm->split(c, &args, &half, error()) == HVD_OK, "split");
  check(comm->destroy(half, error()) == HVD_OK && g_seen == 1, "destroy");
  std::thread([&] { check(comm->abort(c, error()) == HVD_OK && comm->abort(c, error()) == HVD_OK, "abort"); }).join();
  check(comm->async_error(c, error()) == HVD_E_ABORTED && comm->group_begin(c, error()) == HVD_E_ABORTED, "after it");
  check(comm->destroy(c, error()) == HVD_OK, "destroy");

  const hvd_comm_args hostless = comm_args(nullptr);
  check(comm->create(&hostless, &c, error()) == HVD_E_INVALID && c == nullptr, "no device");
  check(contains(g_error.text, "is for device memory and got no device"), g_error.text);
  table()->stream_destroy(s, error());
  table()->close(d, error());
}

void no_exception_crosses() {
  const hvd_device d = opened(0);
  const hvd_comm_api* comm = hvd::CommTable<FullComm>::table();
  const hvd_comm_args args = comm_args(d);
  const hvd_rc codes[] = {HVD_OK, HVD_E_DEVICE, HVD_E_NOMEM, HVD_E_INTERNAL, HVD_E_INTERNAL};
  const char* texts[] = {"", "it broke", "out of memory", "surprise", "no std::exception"};
  for (int how = 1; how <= 4; ++how) {
    g_fail = 0;
    hvd_stream s = nullptr, t = nullptr;
    hvd_event e = nullptr, f = nullptr;
    hvd_mem m = nullptr;
    hvd_comm c = nullptr;
    hvd_device other = nullptr;
    hvd_buf b{};
    int64_t ns = 0;
    void* handle = nullptr;
    hvd_device_props props;
    std::memset(&props, 0, sizeof(props));
    props.hdr.struct_size = sizeof(props);
    hvd_copy_item item;
    std::memset(&item, 0, sizeof(item));
    item.hdr.struct_size = sizeof(item);
    hvd_coll_args call;
    std::memset(&call, 0, sizeof(call));
    call.hdr.struct_size = sizeof(call);
    check(table()->stream_create(d, 7, &s, error()) == HVD_OK && table()->event_create(d, 0, &e, error()) == HVD_OK &&
              table()->event_record(e, s, error()) == HVD_OK &&
              table()->mem_alloc(d, HVD_MEM_PINNED, 64, &m, &b, error()) == HVD_OK &&
              comm->create(&args, &c, error()) == HVD_OK,
          "what they are called on");
    call.stream = s;
    g_fail = how;
    const auto fails = [&](hvd_rc rc, const char* what) {
      check(rc == codes[how] && g_error.code == rc && contains(g_error.text, texts[how]), what);
      check(g_error.vendor_code == (how == 1 ? 1234 : 0), "the vendor's number");
      check(g_error.flags == (how == 1 ? HVD_EF_DEVICE_DEAD : 0), "flags");
      check(t_current == 0, "the device of before is current again");
    };
#define FAILS(slot, ...) fails(table()->slot(__VA_ARGS__, error()), #slot)
#define COMM_FAILS(slot, ...) fails(comm->slot(__VA_ARGS__, error()), "comm " #slot)
    FAILS(open, 0, nullptr, &other);
    FAILS(props, d, &props);
    FAILS(stream_create, d, 0, &t);
    FAILS(stream_query, s);
    FAILS(stream_sync, s, 1);
    FAILS(stream_wait_event, s, e);
    FAILS(event_create, d, 0, &f);
    FAILS(event_record, e, s);
    FAILS(event_query, e);
    FAILS(event_wait, e, 1);
    FAILS(event_elapsed_ns, e, e, &ns);
    FAILS(mem_alloc, d, HVD_MEM_PINNED, 8, &m, &b);
    FAILS(copy, s, b, b, 8);
    FAILS(batched_copy_scale, s, &item, 1);
    FAILS(reduce_local, s, b, b, 1, HVD_FLOAT32, HVD_SUM);
    COMM_FAILS(collective, c, &call, nullptr);
    COMM_FAILS(async_error, c);
    COMM_FAILS(finalize, c, 0);
    COMM_FAILS(group_begin, c);
    COMM_FAILS(group_end, c);
    COMM_FAILS(mem_register, c, b, &handle);
    COMM_FAILS(mem_deregister, c, handle);
    COMM_FAILS(abort, c);
    hvd_comm none = nullptr;
    COMM_FAILS(create, &args, &none);
    check(none == nullptr && other == nullptr && t == nullptr && f == nullptr, "nothing is handed out");
    // The wrapper is freed also if the vendor cannot destroy its object; the sanitizer would see a leak.
    FAILS(mem_free, m);
    FAILS(event_destroy, e);
    FAILS(stream_destroy, s);
    g_fail = 0;
    check(comm->destroy(c, error()) == HVD_OK, "destroy");
  }
  table()->close(d, error());
}

void error_tables() {
  static constexpr hvd::ErrorRow rows[] = {{6, "toyRemote", HVD_E_REMOTE, HVD_EF_COMM_DEAD}};
  static constexpr hvd::ErrorTable toy("Toy", rows);
  toy.check(0, "toyCall");
  const auto thrown = [](int64_t code, const char* detail) {
    return hvd::guarded(error(), [&]() -> hvd_rc {
      toy.check(code, "toyCall", detail);
      return HVD_OK;
    });
  };
  check(thrown(6, "rank 3 went away") == HVD_E_REMOTE && g_error.flags == HVD_EF_COMM_DEAD && g_error.vendor_code == 6,
        "a known code");
  check(std::string(g_error.text) == "toyCall: Toy returned toyRemote (6): rank 3 went away", g_error.text);
  check(thrown(99, nullptr) == HVD_E_INTERNAL && g_error.vendor_code == 99, "an unknown code");
  check(std::string(g_error.text) == "toyCall: Toy returned an unknown code (99)", g_error.text);
}

}  // namespace

int main() {
  subsets();
  devices();
  streams_and_events();
  current_device_on_every_thread();
  no_exception_crosses();
  error_tables();
  return test::verdict();
}
