// What a program has of the device beside the engine: memory, and streams of its own. For tests, which call these
// functions through ctypes; included at the end of a backend.
#pragma once

#include "fake_device.h"

#define PROGRAM_SIDE extern "C" __attribute__((visibility("default")))

PROGRAM_SIDE void* device_alloc(uint64_t bytes) { return pool().add(HVD_MEM_DEVICE, bytes)->host; }
PROGRAM_SIDE void device_free(void* p) { pool().remove(p); }
PROGRAM_SIDE void* device_stream() {
  auto* made = new Stream();
  native_stream(made);
  return made;
}
// Host memory is any memory that is not the device's. A null stream is the default one.
PROGRAM_SIDE void device_copy(void* stream, void* to, void* from, uint64_t bytes) {
  enqueue_copy(reinterpret_cast<hvd_stream>(native_stream(stream)), {to, 0, bytes}, {from, 0, bytes}, bytes);
}
PROGRAM_SIDE void device_sync(void* stream) { native_stream(stream)->sync(INT64_MAX); }
PROGRAM_SIDE int device_idle(void* stream) { return native_stream(stream)->idle(); }
// The stream stands still here until *go is not 0, or the stream's copies have failed.
PROGRAM_SIDE void device_hold(void* stream, volatile int* go) {
  Stream* const s = native_stream(stream);
  s->add([s, go] {
    while (!*go && !s->failed->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}
