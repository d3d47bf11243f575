// The frames of the calling thread, innermost first.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace hvd::bind {

// Calls visit(code, at) for at most `most` frames, until it returns false. `at` is for PyCode_Addr2Line(); before
// Python 3.11 it is the line. Needs the GIL. The code is borrowed.
template <typename Visit>
void for_each_frame(int most, Visit&& visit) {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (bool more = true; frame; --most) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
#if PY_VERSION_HEX >= 0x030b0000
    more = visit(code, PyFrame_GetLasti(frame)) && most > 1;
#else
    more = visit(code, PyFrame_GetLineNumber(frame)) && most > 1;
#endif
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    PyFrameObject* const caller = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = caller;
  }
}

}  // namespace hvd::bind
