// The frames of the calling thread, innermost first, without making objects of them where the interpreter allows that:
// Python 3.11 and 3.12 keep frames as plain structures. The objects that the public API makes of them cost 0.45 us per
// operation, a tenth of a small allreduce.
//
// The structures of one minor version do not change, and the headers are those of the version that this is built for.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/call_site.h"
#include "engine/watch/snapshot.h"

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000 && __has_include(<internal/pycore_frame.h>)
#define HVD_PLAIN_FRAMES 1
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <internal/pycore_frame.h>
#endif

namespace hvd::python {

// Calls visit(code, at) for at most `most` frames, until it returns false. `at` is for PyCode_Addr2Line(); before
// Python 3.11 it is the line. With Python's lock. The code is borrowed.
template <typename Visit>
void for_each_frame(int most, Visit&& visit) {
#ifdef HVD_PLAIN_FRAMES
  for (auto* f = PyThreadState_Get()->cframe->current_frame; f && most > 0; f = f->previous) {
    if (_PyFrame_IsIncomplete(f)) continue;
    const auto at = static_cast<int32_t>(_PyInterpreterFrame_LASTI(f) * static_cast<int>(sizeof(_Py_CODEUNIT)));
    if (!visit(f->f_code, at)) return;
    --most;
  }
#else
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
#endif
}

// Python as the engine's reports see it: the line of the program that made a call, and what its threads run.

// The innermost line of the user's program that led to this call, or else a line of a library; and the line of the
// program that called that function. To be called with the GIL, in the thread of the call. The code of the functions
// stays alive from then on, so that the engine can name the lines at any time.
base::CallSite call_site() noexcept;

// `packages`: the folder that holds hvd_core and the packages above it. With Python's lock.
std::shared_ptr<const watch::Program> python_program(const std::string& packages);

// Program::stacks_without_lock() by itself, for tests. With the GIL, which it gives up meanwhile.
std::optional<std::string> stacks_from_copy();

}  // namespace hvd::python
