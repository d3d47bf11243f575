// Communicators on foreign devices, and facts about a library; see foreign_device.cc.
// foreign_device_driver LIBRARY
#include "device_sugar.h"

using hvd::plugins::Backend;
using hvd::plugins::Collective;
using hvd::plugins::OpenDevice;
using test::contains;
using test::thrown;

namespace {

test::MapStore g_store;

hvd_device opened(const hvd_device_api* table) {
  hvd_device d = nullptr;
  check(table->open(1, nullptr, &d, nullptr) == HVD_OK, "open");
  return d;
}

std::unique_ptr<hvd::plugins::Communicator> join(Backend& b, const char* key, const OpenDevice& device = {}) {
  return b.create_comm(key, g_store, {0}, {0}, 0, test::in_seconds(5), nullptr, device);
}

hvd_coll_caps asked(const hvd::plugins::Communicator& comm, int32_t coll, std::string* why = nullptr) {
  Collective c;
  c.coll = coll;
  c.dtype = HVD_FLOAT32;
  c.in = c.out = {hvd_buf{}};
  c.counts = {1};
  return comm.query(c, why);
}

void foreign_devices(Backend& backend) {
  const hvd_device_api* table = hvd::DeviceTable<Full>::table();
  const OpenDevice device{opened(table), table};
  const auto on_host = join(backend, "host"), on_device = join(backend, "device", device);
  std::string why = "untouched";
  check(asked(*on_host, HVD_ALLGATHER, &why).support == HVD_NATIVE && asked(*on_host, HVD_ALLREDUCE).alignment == 8,
        "on host memory");
  check(asked(*on_device, HVD_ALLREDUCE, &why).alignment == 64 && why == "untouched", "on the device");
  check(asked(*on_device, HVD_ALLGATHER, &why).support == HVD_UNSERVED && why == "no gathering on a toy", why);
  check(asked(*on_device, HVD_BROADCAST).support == HVD_UNSERVED, "what the class has no method for");
  Collective any;
  any.coll = HVD_ALLGATHER;
  any.dtype = HVD_FLOAT32;
  check(backend.query(any.args()).support == HVD_NATIVE, "without a communicator: the best there is");
  const std::string refused = thrown([&] { on_device->start(any); });
  check(contains(refused, "no gathering on a toy"), refused);
  table->close(device.handle, nullptr);
}

hvd_error g_error;
hvd_error* error() {
  std::memset(&g_error, 0, sizeof(g_error));
  g_error.hdr = {sizeof(g_error), HVD_ABI_MAJOR, HVD_ABI_MINOR, nullptr};
  return &g_error;
}

// A communicator class that has a device class accepts only devices of that class.
void own_devices_only() {
  const hvd_device_api* table = hvd::DeviceTable<Full>::table();
  const hvd_comm_api* comm = hvd::CommTable<FullComm>::table();
  const hvd_device d = opened(table);
  const int32_t zero = 0;
  hvd_comm_args a;
  std::memset(&a, 0, sizeof(a));
  a.hdr = {sizeof(a), 1, 0, nullptr};
  a.key = "a key";
  a.ranks = a.hosts = &zero;
  a.size = 1;
  a.device = d;
  hvd_comm c = nullptr;
  const hvd_device_api* const others = hvd::DeviceTable<WithEvents>::table();
  for (const hvd_device_api* from : {table, static_cast<const hvd_device_api*>(nullptr)}) {
    a.device_api = from;
    check(comm->create(&a, &c, error()) == HVD_OK && comm->destroy(c, error()) == HVD_OK, "its own device");
  }
  a.device_api = others;
  check(comm->create(&a, &c, error()) == HVD_E_UNSUPPORTED && c == nullptr, "another's device");
  check(contains(g_error.text, "the toy device was opened by another backend"), g_error.text);
  // A shorter struct ends before the table.
  a.hdr.struct_size = offsetof(hvd_comm_args, device_api);
  check(comm->create(&a, &c, error()) == HVD_OK && comm->destroy(c, error()) == HVD_OK, "a shorter struct");

  hvd_stream s = nullptr;
  check(table->stream_create(d, 7, &s, error()) == HVD_OK, "stream");
  hvd_coll_args call;
  std::memset(&call, 0, sizeof(call));
  call.stream = s;
  check(hvd::Coll(call).foreign_stream(table) == table->stream_native(s), "another's stream, by its table");
  check(hvd::Coll(call).foreign_stream(hvd::DeviceTable<WithMemory>::table()) == nullptr, "a table without streams");
  table->stream_destroy(s, error());
  table->close(d, error());
}

void facts(Backend& backend) {
  check(backend.fact("library") == "Foreign ? 1.0", "a fact, made text");
  check(backend.fact("long") == std::string(5000, 'x'), "a long one");
  check(!backend.fact("no such key"), "one that there is not");
  check(contains(thrown([&] { backend.fact("broken"); }), "foreign_device: info: it broke (DEVICE"), "a failure");
  const auto info = backend.api()->info;
  char text[8] = "before";
  uint64_t n = sizeof(text);
  check(info("library", text, &n, error()) == HVD_E_INVALID && n == 14 && std::string(text) == "before", "no room");
  n = 0;
  check(info("library", nullptr, &n, error()) == HVD_E_INVALID && n == 14, "how much room?");
  check(info(nullptr, text, &n, error()) == HVD_E_INVALID && info("library", text, nullptr, error()) == HVD_E_INVALID,
        "NULL");
  check(info("none", text, &n, error()) == HVD_E_UNAVAILABLE && contains(g_error.text, "'none'"), g_error.text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto backend = Backend::load_library(argv[1], "foreign_device");
  foreign_devices(*backend);
  own_devices_only();
  facts(*backend);
  return test::verdict();
}
