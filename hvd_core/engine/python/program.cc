// See program.h.
#include "engine/python/program.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <new>
#include <unordered_map>
#include <utility>

#include "engine/python/gil.h"
#include "engine/watch/stack_sampler.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

enum class Origin : uint8_t { Unknown, User, Library, Own };

// Where files belong: by their paths, which are known once python_program() was called.
struct Folders {
  std::string packages;  // ends in "/"
  std::string standard;  // Python's own library, likewise

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

// The text of a str object. Reads its memory only: needs no lock while the object is alive.
std::string text_of(PyObject* text) {
  std::string out;
  if (!text || !PyUnicode_Check(text)) return out;
  const auto length = PyUnicode_GET_LENGTH(text);
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Py_UCS4 c = PyUnicode_READ(kind, data, i);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xc0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      out += static_cast<char>(0xe0 | c >> 12);
      out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (c & 0x3f));
    } else {
      out += static_cast<char>(0xf0 | c >> 18);
      out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
      out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (c & 0x3f));
    }
  }
  return out;
}

// Code objects that have been seen, by their addresses, which stay theirs because a reference is kept to each. Their
// number is bounded; the lines of further ones are not noted. Under Python's lock.
class SeenCode {
 public:
  Origin origin_of(PyCodeObject* code) {
    Slot& slot = near_[(reinterpret_cast<uintptr_t>(code) >> 5) % near_.size()];
    if (slot.code == code) return slot.origin;
    const auto found = all_.find(code);
    if (found != all_.end()) {
      slot = {code, found->second};
      return found->second;
    }
    if (all_.size() >= kMost) return Origin::Unknown;
    const Origin origin = folders().origin_of(text_of(code->co_filename));
    all_.emplace(code, origin);
    Py_INCREF(reinterpret_cast<PyObject*>(code));
    slot = {code, origin};
    return origin;
  }

 private:
  static constexpr size_t kMost = 8192;
  struct Slot {
    PyCodeObject* code = nullptr;
    Origin origin = Origin::Unknown;
  };
  std::array<Slot, 256> near_{};
  std::unordered_map<PyCodeObject*, Origin> all_;
};

SeenCode& seen_code() {
  static auto* const seen = new SeenCode;
  return *seen;
}

int32_t line_of(PyCodeObject* code, int32_t at) {
#if PY_VERSION_HEX >= 0x030b0000
  return PyCode_Addr2Line(code, at);  // reads the code object's memory only
#else
  (void)code;
  return at;
#endif
}

// How far a call of a library is followed outwards, to the program that called it.
constexpr int kMostFrames = 24;
// The copy reads some kilobytes. On a machine that has far too much to do, its turn may come late.
constexpr auto kCopyTime = std::chrono::milliseconds(500);

// The interpreter's dump of all threads, which faulthandler calls in signal handlers. Python 3.11 and 3.12 export it.
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
#if PY_VERSION_HEX >= 0x030d0000
    if (Py_IsFinalizing()) return {};
#else
    if (_Py_IsFinalizing()) return {};
#endif
    PyThreadState* const state = PyThreadState_New(interpreter_);
    if (!state) return {};
    take_python_lock(state);
    std::string text = watch::written([](int fd) {
      try {
        py::module_::import("faulthandler").attr("dump_traceback")(fd, true);
      } catch (py::error_already_set& e) {
        e.discard_as_unraisable("a look at the stacks");
      } catch (const std::exception&) {  // no memory
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
  static watch::Place place_in(const void* function, int32_t at) {
    watch::Place place;
    if (!function) return place;
    auto* code = static_cast<PyCodeObject*>(const_cast<void*>(function));
    place.file = watch::shortened(text_of(code->co_filename));
    place.function = text_of(code->co_name);
    place.line = line_of(code, at);
    return place;
  }

  PyInterpreterState* interpreter_;
  Dump dump_;
  std::string main_thread_;
};

}  // namespace

base::CallSite call_site() noexcept {
  base::CallSite found;
  bool in_program = false;
  SeenCode& seen = seen_code();
  for_each_frame(kMostFrames, [&](PyCodeObject* code, int32_t at) {
    const Origin origin = seen.origin_of(code);
    if (origin == Origin::User && in_program) {
      found.caller = code;
      found.caller_at = at;
      return false;
    }
    in_program |= origin == Origin::User;
    if (origin == Origin::User || (origin == Origin::Library && !found.code)) {
      found.code = code;
      found.at = at;
    }
    return true;
  });
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
  const WithoutPythonLock released;
  return program.stacks_without_lock();
}

}  // namespace hvd::python
