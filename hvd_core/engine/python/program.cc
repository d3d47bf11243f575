// See program.h.
#include "engine/python/program.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "engine/python/arguments.h"
#include "engine/python/gil.h"
#include "engine/watch/stack_sampler.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

enum class Origin : uint8_t { Unknown, User, Library, Own };

// Where a file belongs, by its path. Known once python_program() was called.
struct Folders {
  std::string packages;  // ends in "/"
  std::string standard;  // the folder of Python's standard library, likewise

  bool is_own(std::string_view file) const {
    if (packages.empty() || !file.starts_with(packages)) return false;
    file.remove_prefix(packages.size());
    return file.starts_with("hvd_core/") || file.starts_with("horovod/");
  }
  bool is_library(std::string_view file) const {
    return file.find("/site-packages/") != file.npos || file.find("/dist-packages/") != file.npos ||
           file.starts_with("<frozen ") || (!standard.empty() && file.starts_with(standard));
  }
  Origin origin_of(std::string_view file) const {
    return is_own(file) ? Origin::Own : is_library(file) ? Origin::Library : Origin::User;
  }
};

Folders& folders() {
  static Folders all;
  return all;
}

// A function of Python as reports name it.
struct Function {
  PyCodeObject* code;
  Origin origin;
  std::string file, name;
};

// The functions that calls came from, by their code objects. A reference to each is kept, so that the engine's threads
// can name the lines at any time, without the GIL. Their number is bounded; further ones are not noted. With the GIL.
const Function* function_of(PyCodeObject* code) {
  constexpr size_t kMost = 8192;
  static auto* const seen = new std::unordered_map<PyCodeObject*, Function>;
  const auto found = seen->find(code);
  if (found != seen->end()) return &found->second;
  if (seen->size() >= kMost) return nullptr;
  const auto object = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code));
  std::string file = utf8_of(object.attr("co_filename")), name = utf8_of(object.attr("co_name"));
  object.inc_ref();
  const Origin origin = folders().origin_of(file);
  return &seen->emplace(code, Function{code, origin, std::move(file), std::move(name)}).first->second;
}

#if PY_VERSION_HEX >= 0x030b0000
int32_t position_of(PyFrameObject* frame) { return PyFrame_GetLasti(frame); }
int32_t line_of(PyCodeObject* code, int32_t position) { return PyCode_Addr2Line(code, position); }
#else
int32_t position_of(PyFrameObject* frame) { return PyFrame_GetLineNumber(frame); }
int32_t line_of(PyCodeObject*, int32_t position) { return position; }
#endif

// How far a call of a library is followed outwards, to the program that called it.
constexpr int kMostFrames = 24;
// The copy reads some kilobytes. On a machine that has far too much to do, its turn may come late.
constexpr auto kCopyTime = std::chrono::milliseconds(500);

// The interpreter's dump of all threads, which faulthandler calls in signal handlers. Not part of Python's C API, so it
// may be absent.
using Dump = const char* (*)(int fd, PyInterpreterState* interpreter, PyThreadState* current);

class PythonProgram final : public watch::Program {
 public:
  PythonProgram() : interpreter_(PyInterpreterState_Get()) {
    dump_ = reinterpret_cast<Dump>(::dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads"));
    const auto main = py::module_::import("threading").attr("main_thread")().attr("ident");
    char text[32];
    std::snprintf(text, sizeof text, "0x%0*lx", static_cast<int>(sizeof(long) * 2), main.cast<unsigned long>());
    main_thread_ = text;
    py::module_::import("faulthandler");  // imports take locks, so this is done before it is needed
  }

  watch::Place place_of(base::CallSite site) const override {
    watch::Place place = place_in(site.code, site.at);
    if (site.caller) place.caller = watch::text_of(place_in(site.caller, site.caller_at));
    return place;
  }

  std::string stacks() const override {
    if (!Py_IsInitialized()) return {};  // or its end has begun
    PyThreadState* const state = PyThreadState_New(interpreter_);
    if (!state) return {};
    acquire_gil(state);
    std::string text = watch::written([](int fd) {
      try {
        py::module_::import("faulthandler").attr("dump_traceback")(fd, true);
      } catch (py::error_already_set& e) {
        e.discard_as_unraisable("a dump of the stacks");
      }
    });
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
    return text;
  }

  std::optional<std::string> stacks_without_lock() const override {
    if (!dump_) return {};
    // Threads may run on and change what is read. So it is read in a copy of the process, where a crash harms nobody.
    return watch::written_by_copy([this](int fd) { dump_(fd, interpreter_, nullptr); }, kCopyTime);
  }

  std::string main_thread() const override { return main_thread_; }
  bool is_own(const std::string& file) const override { return folders().is_own(file); }
  bool is_library(const std::string& file) const override { return folders().is_library(file); }

 private:
  static watch::Place place_in(const void* site, int32_t position) {
    watch::Place place;
    if (!site) return place;
    const auto& function = *static_cast<const Function*>(site);
    place.file = watch::shortened(function.file);
    place.function = function.name;
    place.line = line_of(function.code, position);
    return place;
  }

  PyInterpreterState* interpreter_;
  Dump dump_;
  std::string main_thread_;
};

}  // namespace

base::CallSite call_site() {
  base::CallSite found;
  bool in_program = false;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (int depth = 0; frame && depth < kMostFrames; ++depth) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    const Function* const function = function_of(code);
    Py_DECREF(code);
    const Origin origin = function ? function->origin : Origin::Unknown;
    if (origin == Origin::User && in_program) {
      found.caller = function;
      found.caller_at = position_of(frame);
      break;
    }
    in_program |= origin == Origin::User;
    if (origin == Origin::User || (origin == Origin::Library && !found.code)) {
      found.code = function;
      found.at = position_of(frame);
    }
    PyFrameObject* const caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return found;
}

std::shared_ptr<const watch::Program> python_program(const std::string& packages) {
  folders().packages = packages;
  if (!folders().packages.ends_with('/')) folders().packages += '/';
  folders().standard = py::module_::import("os").attr("__file__").cast<std::string>();
  folders().standard.resize(folders().standard.rfind('/') + 1);
  return std::make_shared<PythonProgram>();
}

std::optional<std::string> stacks_from_copy() {
  const PythonProgram program;
  const ReleaseGil released;
  return program.stacks_without_lock();
}

}  // namespace hvd::python
