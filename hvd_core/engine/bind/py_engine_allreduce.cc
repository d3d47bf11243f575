// Engine.allreduce as Python calls it, and the methods for many tensors at once: those whose calls must cost nothing
// beside their work. pybind11's dispatch of eight arguments takes as long as the agreement of two ranks. See
// py_engine.h.
#include <cxxabi.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <string_view>

#include "engine/bind/py_engine.h"
#include "engine/calls/checks.h"

namespace py = pybind11;

namespace hvd::bind {

using calls::require;

namespace {

constexpr std::array<std::string_view, 8> kNames{"inputs",   "outputs",   "name",        "op",
                                                 "prescale", "postscale", "process_set", "wait"};
constexpr size_t kRequired = 4;
constexpr const char* kDoc =
    "allreduce(inputs, outputs, name, op, prescale=1.0, postscale=1.0, process_set=0, wait=False)\n\n"
    "Returns a handle; 0 with `wait`, which waits for the result.";

// The arguments in the order of kNames, null where one is missing that has a default. Throws TypeError.
std::array<PyObject*, kNames.size()> arguments_of(PyObject* const* given, Py_ssize_t n, PyObject* keywords) {
  std::array<PyObject*, kNames.size()> all{};
  if (n > static_cast<Py_ssize_t>(all.size())) throw py::type_error("allreduce() takes at most 8 arguments");
  for (Py_ssize_t i = 0; i < n; ++i) all[static_cast<size_t>(i)] = given[i];
  for (Py_ssize_t k = 0; keywords && k < PyTuple_GET_SIZE(keywords); ++k) {
    const char* const text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(keywords, k));
    if (!text) throw py::error_already_set();
    size_t i = 0;
    while (i < kNames.size() && kNames[i] != text) ++i;
    if (i == kNames.size())
      throw py::type_error("allreduce() got an unexpected keyword argument '" + std::string(text) + "'");
    if (all[i]) throw py::type_error("allreduce() got multiple values for argument '" + std::string(text) + "'");
    all[i] = given[n + k];
  }
  for (size_t i = 0; i < kRequired; ++i)
    if (!all[i]) throw py::type_error("allreduce() lacks the argument '" + std::string(kNames[i]) + "'");
  return all;
}

// The method's descriptor has checked the type of `self`.
PyEngine& engine_of(PyObject* self) {
  auto* const engine = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().value_ptr<PyEngine>();
  if (!engine) throw py::type_error("this Engine was not initialized");
  return *engine;
}

PyObject* allreduce(PyObject* self, PyObject* const* given, Py_ssize_t n, PyObject* keywords) {
  // Borrowed for good, so that the defaults cost no object.
  static PyObject* const one = PyFloat_FromDouble(1.0);
  static PyObject* const zero = PyLong_FromLong(0);
  try {
    const auto a = arguments_of(given, n, keywords);
    const auto or_else = [](PyObject* value, PyObject* otherwise) { return py::handle(value ? value : otherwise); };
    const int wait = a[7] ? PyObject_IsTrue(a[7]) : 0;
    if (wait < 0) throw py::error_already_set();
    const uint64_t handle = engine_of(self).allreduce(a[0], a[1], a[2], a[3], or_else(a[4], one), or_else(a[5], one),
                                                      or_else(a[6], zero), wait != 0);
    return PyLong_FromUnsignedLongLong(handle);
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const abi::__forced_unwind&) {  // the end of the thread
    throw;
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

// The exception that is being handled, as a Python object.
py::object caught() {
  try {
    throw;
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return py::error_already_set().value();
}

}  // namespace

void PyEngine::allreduce_each(const py::list& tensors, const py::list& names, py::handle reduce_op, py::handle prescale,
                              py::handle postscale, py::handle process_set, py::list handles) {
  require(tensors.size() == names.size(), "as many names as tensors are needed");
  // Submitted requests are announced together, also if the last ones fail.
  struct Announced {
    Engine& engine;
    ~Announced() { engine.announce(); }
  } const announced{*engine_};
  for (size_t i = 0; i < tensors.size() && i < names.size(); ++i) {
    const py::object tensor = tensors[i], name = names[i];
    try {
      calls::Call call = reduction(tensor, tensor, name, reduce_op, prescale, postscale, process_set);
      call.more_follow = true;
      handles.append(submit(std::move(call), {tensor, tensor}));
    } catch (const abi::__forced_unwind&) {  // the end of the thread
      throw;
    } catch (...) {
      handles.append(caught());
    }
  }
}

void PyEngine::release_each(const std::vector<uint64_t>& handles) {
  for (const uint64_t handle : handles) release(handle);
}

void bind_allreduce(py::class_<PyEngine>& engine) {
  static PyMethodDef method{"allreduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allreduce)),
                            METH_FASTCALL | METH_KEYWORDS, kDoc};
  PyObject* const made = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(engine.ptr()), &method);
  if (!made) throw py::error_already_set();
  engine.attr("allreduce") = py::reinterpret_steal<py::object>(made);
  engine.def("allreduce_each", &PyEngine::allreduce_each, py::arg("tensors"), py::arg("names"), py::arg("op"),
             py::arg("prescale"), py::arg("postscale"), py::arg("process_set"), py::arg("handles"));
  engine.def("release_each", &PyEngine::release_each, py::arg("handles"));
}

}  // namespace hvd::bind
