// StagedLowering over a device whose memory the host cannot touch (tests/backends/host/fake_device), with ranks as
// threads: every collective must give what the shm backend gives on host memory, bit for bit, and failures must leave
// nothing under way.
//
//   staged_test libhvd_backend_shm.so libminimal.so libfake_sync.so                      everything but:
//   staged_test libhvd_backend_shm.so libminimal.so libfake_sync.so failing              a copy fails (option
//   fail_copy)
#include "engine/dataplane/staged.h"

#include <algorithm>
#include <cstdlib>

#include "collective_cases.h"
#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/dataplane/direct.h"
#include "engine/dataplane/emulated.h"

using namespace hvd;
using plugins::Collective;
using test::Buffers;
using test::Case;
using test::Schedule;

namespace {

std::shared_ptr<plugins::Backend> shm_backend, fake_sync_backend;
uint64_t cases = 0;

void must(hvd_rc rc) {
  if (rc != HVD_OK) throw plugins::BackendError(rc, 0, 0, "the fake device failed in the test's own call");
}

// One rank's fake device.
struct Device {
  const hvd_device_api* api = fake_sync_backend->device_api();
  std::shared_ptr<plugins::Device> opened;
  hvd_device device = nullptr;
  hvd_stream stream = nullptr;
  explicit Device(int rank)
      : opened(plugins::Device::open(fake_sync_backend, rank % 2)), device(opened->opened().handle) {
    must(api->stream_create(device, 0, &stream, nullptr));
  }
  ~Device() { api->stream_destroy(stream, nullptr); }
};

// Copies of a rank's buffers in the device's memory.
class FarBuffers {
 public:
  FarBuffers(Device& device, const Buffers& from) : device_(device), c(from.c) {
    for (const auto& bytes : from.memory) {
      hvd_mem mem = nullptr;
      hvd_buf buf{};
      must(device.api->mem_alloc(device.device, HVD_MEM_DEVICE, bytes.size(), &mem, &buf, nullptr));
      mems_.push_back(mem);
      bufs_.push_back(buf);
      must(device.api->copy(device.stream, buf, {const_cast<char*>(bytes.data()), 0, bytes.size()}, bytes.size(),
                            nullptr));
    }
    for (auto* list : {&c.in, &c.out}) {
      for (hvd_buf& b : *list) {
        for (size_t k = 0; k < from.memory.size(); ++k) {
          const auto skip = static_cast<uint64_t>(dataplane::address(b) - from.memory[k].data());
          // The host's address of device memory is a handle: everything else goes into the offset.
          if (skip >= from.memory[k].size()) continue;
          b = {bufs_[k].base, bufs_[k].offset + skip, b.bytes};
          break;
        }
      }
    }
  }
  ~FarBuffers() {
    for (hvd_mem m : mems_) device_.api->mem_free(m, nullptr);
  }
  // Only what has arrived when the schedule was through: the read goes by a stream of its own.
  void read_back(Buffers& to) {
    hvd_stream other = nullptr;
    must(device_.api->stream_create(device_.device, 0, &other, nullptr));
    for (size_t k = 0; k < bufs_.size(); ++k)
      must(device_.api->copy(other, {to.memory[k].data(), 0, to.memory[k].size()}, bufs_[k], to.memory[k].size(),
                             nullptr));
    must(device_.api->stream_sync(other, HVD_NO_DEADLINE, nullptr));
    must(device_.api->stream_destroy(other, nullptr));
  }

 private:
  Device& device_;
  std::vector<hvd_mem> mems_;
  std::vector<hvd_buf> bufs_;

 public:
  Collective c;
};

constexpr uint64_t kMostChunks = 100;  // both slots are used again and again; the last chunk is not whole

void compare(const std::string& name, plugins::Backend& backend, int size, uint64_t seed, uint64_t chunk) {
  test::MapStore store;
  auto list = test::make_cases(size, seed, 1, 1);
  // Every type takes the same way here; a few of them are enough.
  std::erase_if(list, [](const Case& x) {
    return x.dtype != HVD_FLOAT32 && x.dtype != HVD_UINT8 && x.dtype != HVD_INT64 && x.dtype != HVD_FLOAT16;
  });
  for (Case& x : list)
    for (uint64_t& n : x.counts) n = std::min(n, kMostChunks * chunk / base::dtype_bytes(x.dtype) - 1);
  test::on_ranks(size, [&](int rank) {
    const auto reference = test::join_comm(*shm_backend, store, "reference", rank, size);
    const auto comm = test::join_comm(backend, store, "host", rank, size);
    const dataplane::HostMath math(shm_backend);
    dataplane::DirectLowering whole(*reference), direct(*comm);
    dataplane::EmulatedLowering emulated(direct, *comm, math);
    Device device(rank);
    dataplane::StagedLowering staged(emulated, device.opened, chunk);
    Schedule schedule;
    for (size_t k = 0; k < list.size(); ++k) {
      Case x = list[k];
      if (base::has_reduction(x.coll) && !base::is_reducible(x.dtype, x.op)) continue;
      Buffers expected = make(x, rank, size, math, seed + k), got = test::copy(expected);
      FarBuffers there(device, got);
      // With the producer's stream nothing is waited for before the schedule runs; without results it need not wait
      // for the stream either.
      const bool has_results = !x.counts.empty() && there.c.out[0].bytes > 0;
      if (k % 2 && has_results)
        there.c.stream = device.stream;
      else
        must(device.api->stream_sync(device.stream, HVD_NO_DEADLINE, nullptr));
      staged.write_steps(schedule, there.c);
      test::run(schedule);
      schedule.clear();
      there.read_back(got);
      whole.write_steps(schedule, expected.c);
      test::run(schedule);
      schedule.clear();
      test::check(test::same(x, expected, got, rank), name + ", rank " + std::to_string(rank) + ": " + x.text());
      if (rank == 0) ++cases;
    }
  });
}

Case large_sum() {
  Case x;
  x.coll = HVD_ALLREDUCE;
  x.dtype = HVD_FLOAT32;
  x.counts = {5000, 3};
  return x;
}

// A peer stays away, the communicator is aborted: after settle() nothing touches the memory any more. The sanitizers
// and the device's own mappings see to it that it would be noticed.
void abort_in_the_middle() {
  test::MapStore store;
  std::atomic<bool> over{false};
  test::on_ranks(2, [&](int rank) {
    const auto comm = test::join_comm(*shm_backend, store, "abort", rank, 2);
    const dataplane::HostMath math(shm_backend);
    dataplane::DirectLowering direct(*comm);
    Device device(rank);
    dataplane::StagedLowering staged(direct, device.opened, 4096);
    if (rank == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    // While the first chunk waits for the peer, the many copies of the second one are under way.
    Case x = large_sum();
    x.counts.assign(300, 3);
    x.counts[0] = 1024;
    const Buffers host = make(x, rank, 2, math, 1);
    FarBuffers there(device, host);
    must(device.api->stream_sync(device.stream, HVD_NO_DEADLINE, nullptr));
    there.c.stream = device.stream;
    Schedule schedule;
    staged.write_steps(schedule, there.c);
    while (!comm->in_flight()) test::check(!schedule.advance(), "it cannot be through");
    test::check(device.api->stream_query(device.stream, nullptr) == HVD_INPROGRESS, "nothing is under way");
    comm->abort();
    const std::string text = test::thrown([&] { test::run(schedule); });
    test::check(test::contains(text, "ABORTED"), text);
    schedule.settle(test::in_seconds(20));
    test::check(device.api->stream_query(device.stream, nullptr) == HVD_OK, "settled, but work is under way");
    schedule.clear();
    over = true;
  });
}

// Waits that end before the work does are no failures.
void short_waits() {
  test::MapStore store;
  test::on_ranks(1, [&](int rank) {
    const auto comm = test::join_comm(*shm_backend, store, "short", rank, 1);
    const dataplane::HostMath math(shm_backend);
    dataplane::DirectLowering direct(*comm);
    Device device(rank);
    dataplane::StagedLowering staged(direct, device.opened);
    Buffers host = make(large_sum(), rank, 1, math, 1);
    const Buffers before = make(large_sum(), rank, 1, math, 1);
    FarBuffers there(device, host);
    there.c.stream = device.stream;
    Schedule schedule;
    staged.write_steps(schedule, there.c);
    int waits = 0;
    for (; !schedule.advance(); ++waits) {
      test::check(schedule.in_flight(), "not through, and nothing to wait for");
      schedule.wait(base::now_ns());
    }
    test::check(waits > 1, "the copies did not have to be waited for");
    there.read_back(host);
    test::check(std::memcmp(host.c.out[0].base, before.c.in[0].base, 20000) == 0, "a sum of one");
  });
}

void failing() {
  test::MapStore store;
  test::on_ranks(1, [&](int rank) {
    const auto comm = test::join_comm(*shm_backend, store, "failing", rank, 1);
    const dataplane::HostMath math(shm_backend);
    dataplane::DirectLowering direct(*comm);
    Device device(rank);
    dataplane::StagedLowering staged(direct, device.opened, 1024);
    const Buffers host = make(large_sum(), rank, 1, math, 1);
    FarBuffers there(device, host);
    must(device.api->stream_sync(device.stream, HVD_NO_DEADLINE, nullptr));
    Schedule schedule;
    staged.write_steps(schedule, there.c);
    const std::string text = test::thrown([&] { test::run(schedule); });
    test::check(test::contains(text, "DEVICE fake_sync: event_") && test::contains(text, "vendor code 77"), text);
    schedule.settle(test::in_seconds(5));
    schedule.clear();
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  base::set_log(base::Level::Error, false, -1);
  shm_backend = plugins::Backend::load_library(argv[1], "shm");
  const auto minimal = plugins::Backend::load_library(argv[2], "minimal");
  fake_sync_backend = plugins::Backend::load_library(argv[3], "fake_sync");
  if (argc > 4) {
    failing();
    return test::verdict();
  }
  const std::string text = test::thrown([&] { plugins::Device::open(shm_backend, 0)->allocate(HVD_MEM_PINNED, 1); });
  test::check(test::contains(text, "UNSUPPORTED shm: mem_alloc of pinned memory"), text);
  for (int size : {1, 2, 3}) {
    compare("shm, small chunks", *shm_backend, size, 7, 100);
    compare("shm", *shm_backend, size, 8, 4 << 20);
  }
  compare("minimal", *minimal, 2, 9, 1000);
  abort_in_the_middle();
  short_waits();
  std::printf("%llu collectives compared\n", static_cast<unsigned long long>(cases));
  return test::verdict();
}
