// What a program has of the simulated device beside the engine, in the words of tests/hvd_core/engine/device_face.py:
// its device, memory, and a stream of its own. Nothing here counts as a call of the driver's functions, so that what is
// counted was called by others.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "addresses.h"
#include "streams.h"

namespace {

using namespace cusim;

void must(bool fine) {
  if (!fine) abort();
}

StreamRef stream_at(void* handle) {
  StreamRef stream = find(static_cast<CUstream>(handle));
  must(stream != nullptr);
  return stream;
}

}  // namespace

// As the CUDA runtime's cudaSetDevice: the device's primary context is current on this thread from here on.
SIM_EXPORT void device_set(int ordinal) {
  must(initialise() == CUDA_SUCCESS && is_device(ordinal));
  static std::atomic<int> kept{-1};
  if (kept.exchange(ordinal) != ordinal) must(retain(ordinal) == CUDA_SUCCESS);
  set_current(&primary(ordinal));
}

// -1: no context is current.
SIM_EXPORT int device_current(void) { return current() == nullptr ? -1 : current()->device; }

SIM_EXPORT void* device_alloc(uint64_t bytes) {
  if (current() == nullptr) device_set(0);
  const sim::MemoryRef memory = sim::allocate_device(current()->device, bytes);
  must(memory != nullptr);
  return memory->base;
}

SIM_EXPORT void device_free(void* p) { must(sim::release(p, true) == topsSuccess); }

// A blocking stream, as frameworks' own ones mostly are not: work on the default stream comes between.
SIM_EXPORT void* device_stream(void) {
  if (current() == nullptr) device_set(0);
  const StreamRef stream = make_stream(current(), 0, 0);
  add(stream);
  return stream.get();
}

SIM_EXPORT void device_copy(void* stream, void* to, void* from, uint64_t bytes) {
  if (bytes == 0) return;
  sim::Span target, source;
  bool pageable = false;
  must(copyable(to, bytes, &target, &pageable) == CUDA_SUCCESS);
  must(copyable(from, bytes, &source, &pageable) == CUDA_SUCCESS);
  must(give(*stream_at(stream), [target, source, bytes] {
         memmove(target.data, source.data, bytes);
         return CUDA_SUCCESS;
       }) == CUDA_SUCCESS);
}

SIM_EXPORT void device_sync(void* stream) { stream_at(stream)->queue->synchronize(); }

SIM_EXPORT int device_idle(void* stream) { return stream_at(stream)->queue->query() != topsErrorNotReady; }

// The stream stands still until *go is 1, or for as long as a test lasts.
SIM_EXPORT void device_hold(void* stream, int* go) {
  must(give(*stream_at(stream), [go] {
         for (int i = 0; i < 100000 && __atomic_load_n(go, __ATOMIC_ACQUIRE) == 0; ++i) {
           std::this_thread::sleep_for(std::chrono::milliseconds(1));
         }
         return CUDA_SUCCESS;
       }) == CUDA_SUCCESS);
}
