// The user program's side of the fake device: memory, and streams of its own. Tests call these functions through
// ctypes. Included at the end of a backend.
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
// All other memory is host memory. A null stream is the default one.
PROGRAM_SIDE void device_copy(void* stream, void* to, void* from, uint64_t bytes) {
  enqueue_copy(reinterpret_cast<hvd_stream>(native_stream(stream)), {to, 0, bytes}, {from, 0, bytes}, bytes);
}
PROGRAM_SIDE void device_sync(void* stream) { native_stream(stream)->sync(INT64_MAX); }
PROGRAM_SIDE int device_idle(void* stream) { return native_stream(stream)->idle(); }
// The stream waits here until *go is not 0, or until its copies have failed.
PROGRAM_SIDE void device_hold(void* stream, volatile int* go) {
  Stream* const s = native_stream(stream);
  s->add([s, go] {
    while (!*go && !s->failed->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
}
