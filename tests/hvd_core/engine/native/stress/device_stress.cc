// Whole engines in one process with tensors on a fake device (tests/backends/host/fake_stream), for sanitizers: threads
// submit, wait, order streams, poll and let go, with all values checked; rounds end in good order or by an abort in the
// middle of it. Says "passed".
//
//   device_stress [--seconds 10] [--seed 1]
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "check.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "rng.h"
#include "world.h"

using namespace hvd;
using namespace hvd::native;

namespace {

// The program's side of the device.
struct Device {
  void* (*alloc)(uint64_t);
  void (*release)(void*);
  void* (*stream)();
  void (*copy)(void*, void*, void*, uint64_t);
  void (*sync)(void*);

  explicit Device(const std::string& path) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    require(library != nullptr, path + " cannot be opened");
    const auto find = [&](auto& to, const char* name) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(::dlsym(library, name));
      require(to != nullptr, name);
    };
    find(alloc, "device_alloc");
    find(release, "device_free");
    find(stream, "device_stream");
    find(copy, "device_copy");
    find(sync, "device_sync");
  }
};

struct Worker {
  World& world;
  const Device& device;
  int rank, thread;
  std::atomic<bool>& over;
  uint64_t done = 0, failed = 0;
  void* stream = nullptr;

  void work(uint64_t seed, int steps) {
    Rng rng(seed);
    stream = device.stream();
    try {
      for (int step = 0; step < steps; ++step) one(rng, step);
    } catch (const RequestFailed&) {
      require(over, "an engine has stopped by itself");
      ++failed;
    }
    device.sync(stream);
  }

  calls::Tensor tensor(void* p, int32_t dtype, uint64_t n) {
    calls::Tensor t;
    t.data = p;
    t.dtype = dtype;
    t.shape = {static_cast<int64_t>(n)};
    t.device_type = "fake_stream";
    t.has_stream = true;
    t.stream = stream;
    return t;
  }

  // The same on all ranks but for the way to wait.
  void one(Rng& rng, int step) {
    Engine& engine = world[rank];
    const bool wide = step % 3 == 2, gathers = step % 4 == 3;
    const uint64_t n = 1 + static_cast<uint64_t>(step * 37 + thread * 11) % 5000;
    const uint64_t width = wide ? 8 : 4;
    std::vector<char> host(n * width);
    for (uint64_t i = 0; i < n; ++i) {
      const int64_t value = static_cast<int64_t>(i) + rank + step;
      const auto real = static_cast<float>(value);
      std::memcpy(host.data() + i * width, wide ? static_cast<const void*>(&value) : &real, width);
    }
    // However this step ends: nothing of the stream's reads `host` any more.
    struct Synced {
      Worker& w;
      ~Synced() { w.device.sync(w.stream); }
    } synced{*this};
    void* const p = device.alloc(n * width);
    device.copy(stream, p, host.data(), n * width);
    const auto t = tensor(p, wide ? HVD_INT64 : HVD_FLOAT32, n);
    agreement::SignatureFields f;
    f.kind = gathers ? base::OpKind::Allgather : base::OpKind::Allreduce;
    f.device_type = "fake_stream";
    f.tensors = {{t.dtype, gathers ? std::vector<int64_t>{-1} : t.shape}};
    const std::string name = std::to_string(thread) + "." + std::to_string(step % 5);
    const std::vector<calls::Tensor> in{t}, out = gathers ? std::vector<calls::Tensor>{} : in;
    auto marks = engine.ready_marks(in, out);
    auto request =
        engine.submit(std::make_shared<const agreement::Signature>(f),
                      {.name = name, .in = in, .out = out, .ready = std::move(marks), .waits = rng.below(2) == 0});
    const uint64_t how = rng.below(3);
    while (how == 0 && !engine.poll(*request)) std::this_thread::yield();
    while (!engine.wait(*request, 10'000'000)) {
    }
    while (how == 1 && !engine.finish(*request, 10'000'000)) {
    }
    if (request->failed()) {
      require(over, "failed: " + request->error());
      ++failed;
      return;  // what an aborted device may still touch is not freed
    }
    require(engine.order_after(*request, stream), "streams cannot be ordered");
    if (!gathers) {
      device.copy(stream, host.data(), p, n * width);
      device.sync(stream);
      check(host, wide, step);
    } else {
      require(request->outputs[0].shape[0] == static_cast<int64_t>(n) * world.size(), "rows of an allgather");
    }
    device.sync(stream);
    if (!over) device.release(p);
    ++done;
  }

  void check(const std::vector<char>& host, bool wide, int step) {
    const int64_t ranks = world.size();
    for (uint64_t i = 0; i < host.size() / (wide ? 8 : 4) && !over; ++i) {
      const int64_t wanted = ranks * (static_cast<int64_t>(i) + step) + ranks * (ranks - 1) / 2;
      int64_t got = 0;
      float real = 0;
      std::memcpy(wide ? static_cast<void*>(&got) : &real, host.data() + i * (wide ? 8 : 4), wide ? 8 : 4);
      if (!wide) got = static_cast<int64_t>(real);
      require(got == wanted,
              "element " + std::to_string(i) + " is " + std::to_string(got) + " instead of " + std::to_string(wanted));
    }
  }
};

void run_round(const std::string& folder, const Device& device, uint64_t seed, uint64_t* done, uint64_t* failed) {
  Rng rng(seed);
  const int ranks = 2 + static_cast<int>(rng.below(2));
  const EngineConfig::Library shm{"shm", folder + "/libhvd_backend_shm.so"};
  const EngineConfig::Library fake_stream{"fake_stream", folder + "/libhvd_backend_fake_stream.so"};
  Ways ways{"shm", shm, {}, shm};
  Knobs knobs;
  EngineConfig::DeviceConfig config;
  config.type = "fake_stream";
  config.table = fake_stream;
  const uint64_t routed = rng.below(3);  // none: all is staged
  if (routed > 0) config.routes[HVD_ALLREDUCE] = fake_stream;
  if (routed > 1) config.routes[HVD_ALLGATHER] = fake_stream;
  knobs.devices = {config};
  knobs.spin_ns = rng.below(2) ? 2'000 : 0;
  World world(ranks, Tree::Segment, ways, knobs);
  for (const auto& error : world.start()) require(error.empty(), error);
  const bool aborts = rng.below(3) == 0;
  std::atomic<bool> over{false};
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    for (int t = 0; t < 2; ++t) {
      workers.push_back(std::make_unique<Worker>(Worker{world, device, r, t, over}));
      threads.emplace_back([w = workers.back().get(), seed, r, t] { w->work(seed * 977 + r * 31 + t, 20); });
    }
  if (aborts) {
    std::this_thread::sleep_for(std::chrono::milliseconds(rng.below(40)));
    over = true;
    world[0].abort("the test has enough");
  }
  for (auto& t : threads) t.join();
  threads.clear();
  over = true;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&world, r] {
      const int64_t deadline = base::now_ns() + 20'000'000'000;
      while (!world[r].shutdown("the end", deadline, 10'000'000)) {
      }
    });
  for (auto& t : threads) t.join();
  for (const auto& w : workers) {
    *done += w->done;
    *failed += w->failed;
  }
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--seconds")) seconds = std::atof(argv[i + 1]);
    if (!std::strcmp(argv[i], "--seed")) seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  const std::string program = argv[0];
  const std::string folder = program.substr(0, program.find_last_of('/'));
  base::set_log(base::Level::Error, false, -1);
  ::setenv("HOROVOD_BACKEND_FAKE_STREAM_DELAY_US", "20", 1);
  const Device device(folder + "/libhvd_backend_fake_stream.so");
  uint64_t rounds = 0, done = 0, failed = 0;
  for (const int64_t end = base::now_ns() + static_cast<int64_t>(seconds * 1e9); base::now_ns() < end; ++rounds) {
    std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed + rounds));
    run_round(folder, device, seed + rounds, &done, &failed);
  }
  std::printf("%llu rounds, %llu operations, %llu failed as they should: passed\n",
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(failed));
  return 0;
}
