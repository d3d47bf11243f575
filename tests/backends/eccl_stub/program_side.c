/* What a program has of the simulated device beside the engine, in the words of tests/hvd_core/engine/device_face.py:
 * memory, and streams of its own. It is linked with the simulator that the backend opens, so that both mean the same
 * memory. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "tops_runtime.h"

#define SIDE __attribute__((visibility("default")))

static void must(topsError_t result) {
  if (result != topsSuccess) abort();
}

SIDE void device_set(int ordinal) { must(topsSetDevice(ordinal)); }
SIDE int device_current(void) {
  int now = -1;
  must(topsGetDevice(&now));
  return now;
}
SIDE void* device_alloc(uint64_t bytes) {
  void* p = NULL;
  must(topsMalloc(&p, bytes));
  return p;
}
SIDE void device_free(void* p) { must(topsFree(p)); }
SIDE void* device_stream(void) {
  topsStream_t stream = NULL;
  must(topsStreamCreate(&stream));
  return stream;
}
SIDE void device_copy(void* stream, void* to, void* from, uint64_t bytes) {
  must(topsMemcpyAsync(to, from, bytes, topsMemcpyDefault, stream));
}
SIDE void device_sync(void* stream) { must(topsStreamSynchronize(stream)); }
SIDE int device_idle(void* stream) { return topsStreamQuery(stream) == topsSuccess; }

static void hold(void* unused) {
  (void)unused;
  sleep(100);
}
/* The stream does nothing for as long as a test lasts. */
SIDE void device_hold(void* stream) { must(topsLaunchHostFunc(stream, hold, NULL)); }
