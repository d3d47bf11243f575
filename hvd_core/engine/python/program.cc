// See program.h.
#include "engine/python/program.h"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

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
// Frames of one thread that a report looks at.
constexpr int kMostStackFrames = 200;

class PythonProgram final : public watch::Program {
 public:
  PythonProgram() : interpreter_(PyInterpreterState_Get()) {
    const auto threading = py::module_::import("threading");
    main_thread_ = threading.attr("main_thread")().attr("ident").cast<uint64_t>();
    // Leaked: the interpreter may have ended when this object does.
    active_threads_ = py::object(threading.attr("_active")).release();
    current_frames_ = py::object(py::module_::import("sys").attr("_current_frames")).release();
  }

  watch::Place place_of(base::CallSite site) const override {
    watch::Place place = place_in(site.code, site.at);
    if (site.caller) place.caller = watch::text_of(place_in(site.caller, site.caller_at));
    return place;
  }

  std::optional<std::vector<watch::Thread>> threads() const override {
    if (!Py_IsInitialized()) return {};  // or its end has begun
    PyThreadState* const state = PyThreadState_New(interpreter_);
    if (!state) return {};
    acquire_gil(state);
    std::vector<watch::Thread> threads;
    try {
      threads = read_threads();
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("a sample of the stacks");
    }
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
    return threads;
  }

  bool is_own(const std::string& file) const override { return folders().is_own(file); }
  bool is_library(const std::string& file) const override { return folders().is_library(file); }

 private:
  // Runs no bytecode, so that the GIL is kept and no frame ends meanwhile.
  std::vector<watch::Thread> read_threads() const {
    std::vector<watch::Thread> threads;
    const auto active = py::reinterpret_borrow<py::dict>(active_threads_);
    const py::dict frames = current_frames_();
    for (const auto& [id, innermost] : frames) {
      watch::Thread thread{.is_main = id.cast<uint64_t>() == main_thread_};
      if (active.contains(id)) thread.name = utf8_of(active[id].attr("_name"));
      auto frame = py::reinterpret_borrow<py::object>(innermost);
      for (int depth = 0; !frame.is_none() && depth < kMostStackFrames; ++depth) {
        const py::object code = frame.attr("f_code");
        watch::Place place;
        place.file = utf8_of(code.attr("co_filename"));
        place.function = utf8_of(code.attr("co_name"));
        place.line = PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(frame.ptr()));
        thread.frames.push_back(std::move(place));
        frame = frame.attr("f_back");
      }
      threads.push_back(std::move(thread));
    }
    return threads;
  }

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
  uint64_t main_thread_;
  py::handle active_threads_, current_frames_;
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

}  // namespace hvd::python
