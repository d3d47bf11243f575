// A backend's threads and their cores: a thread that announces itself through the host's table gets its name and the
// process's cores, whichever cores it inherited or chose. Prints "passed".
#include <pthread.h>
#include <sched.h>

#include <functional>
#include <thread>

#include "check.h"
#include "engine/base/threads.h"
#include "engine/plugins/host_api.h"

using namespace hvd;
using namespace hvd::native;

namespace {

int count(const base::CoreMask& mask) {
  int n = 0;
  for (unsigned long word : mask) n += __builtin_popcountl(word);
  return n;
}

int first_core(const base::CoreMask& mask, int skip = 0) {
  for (int core = 0;; ++core)
    if ((mask[static_cast<size_t>(core) / 64] >> (core % 64) & 1) != 0 && skip-- == 0) return core;
}

void pin_myself(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  require(::sched_setaffinity(0, sizeof set, &set) == 0, "this thread cannot be pinned");
}

// The cores of a thread that does `before`, then announces itself.
base::CoreMask after(const hvd_host_api* host, const std::function<void()>& before) {
  base::CoreMask found;
  std::thread([&] {
    before();
    host->thread_enter("worker");
    found = base::own_cores();
    char name[16];
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    require(std::string(name) == "kept:worker", std::string("the thread is called ") + name);
  }).join();
  return found;
}

}  // namespace

int main() {
  const hvd_host_api* host = plugins::make_host_api("kept");
  const base::CoreMask all = base::own_cores();
  require(!all.empty(), "the kernel does not say on which cores this may run");
  require(after(host, [] {}) == all, "without a sink a thread's cores were changed");
  if (count(all) < 2) {
    std::printf("passed, as far as one core allows\n");
    return 0;
  }
  const int one = first_core(all), two = first_core(all, 1);

  // The process was given all: a thread that a backend pinned stays where it was put, unless that is the engine's core.
  plugins::set_thread_sink([all, one] { base::keep_within(all, one); });
  require(after(host, [] {}) == all, "a thread with the process's cores was changed");
  require(count(after(host, [&] { pin_myself(two); })) == 1,
          "a backend's own choice within the process's cores was lost");
  require(after(host, [&] { pin_myself(one); }) == all, "a thread of the pinned engine's thread stayed with it");

  // The process was given one core: a thread on another core, or on all cores, returns to it.
  base::CoreMask given(all.size());
  given[static_cast<size_t>(one) / 64] = 1ul << (one % 64);
  plugins::set_thread_sink([given] { base::keep_within(given, -1); });
  require(after(host, [] {}) == given, "a thread kept more cores than the process was given");
  require(after(host, [&] { pin_myself(two); }) == given, "a thread stayed outside of the process's cores");

  // Pinning asks for nothing that this thread does not have.
  std::thread([&] {
    pin_myself(one);
    std::thread child([] {});
    require(!base::pin_child(child.native_handle(), two).empty(), "a thread was pinned outside of the mask");
    require(!base::pin_child(child.native_handle(), 1 << 22).empty(), "a core that does not exist was accepted");
    require(!base::pin_child(child.native_handle(), -1).empty(), "a negative core was accepted");
    child.join();
  }).join();
  std::printf("passed\n");
  return 0;
}
