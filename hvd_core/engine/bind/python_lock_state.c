// See python_lock_state.h. A source in C: the interpreter's internal headers are not made for C++.
#include "engine/bind/python_lock_state.h"

#include <Python.h>

// The structures of one minor version do not change, and the headers are those of the version that this is built for.
#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x030d0000 && defined(__has_include)
#if __has_include(<internal/pycore_interp.h>)
#define HVD_KNOWS_LOCK 1
#define Py_BUILD_CORE 1
#undef _PyGC_FINALIZED
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif
#endif

struct hvd_python_lock hvd_python_lock_of(const void* interpreter) {
  struct hvd_python_lock found = {0, 0, 0};
#ifdef HVD_KNOWS_LOCK
  const struct _ceval_state* ceval = &((const PyInterpreterState*)interpreter)->ceval;
#if PY_VERSION_HEX >= 0x030c0000
  const struct _gil_runtime_state* gil = ceval->gil;
#else
  const struct _gil_runtime_state* gil = &_PyRuntime.ceval.gil;
#endif
  found.known = 1;
  found.kept = _Py_atomic_load_relaxed(&gil->locked) == 1 && _Py_atomic_load_relaxed(&ceval->gil_drop_request) != 0;
  found.switches = *(const volatile unsigned long*)&gil->switch_number;
#else
  (void)interpreter;
#endif
  return found;
}
