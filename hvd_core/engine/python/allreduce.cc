// Engine.allreduce as Python calls it, and the methods for many tensors at once: those whose calls must cost nothing
// beside their work. pybind11's dispatch of eight arguments takes as long as the agreement of two ranks. See
// engine.h.
#include <cxxabi.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <string_view>

#include "engine/calls/checks.h"
#include "engine/python/arguments.h"
#include "engine/python/engine.h"
#include "engine/python/tensor_view.h"

namespace py = pybind11;

namespace hvd::python {

using calls::require;

namespace {

constexpr std::array<std::string_view, 8> kNames{"inputs",   "outputs",   "name",        "op",
                                                 "prescale", "postscale", "process_set", "wait"};
constexpr size_t kRequired = 4;
constexpr const char* kPrefix = "allreduce.";  // of the names that users give
constexpr const char* kDoc =
    "allreduce(inputs, outputs, name, op, prescale=1.0, postscale=1.0, process_set=0, wait=False)\n\n"
    "Returns a handle; 0 with `wait`, which waits for the result.";

constexpr const char* kPlainDoc =
    "reduce_plain(tensor, output, name, op, prescale, postscale, process_set, wait)\n\n"
    "Returns a handle, 0 with `wait`; None if the arguments must be checked and converted for allreduce().";
constexpr const char* kFinishDoc =
    "finish(handle, kept)\n\n"
    "Waits for an operation, lets go of its tensors and deletes kept[handle], also if it has failed.";

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

// The result of `call`, or null with Python's exception set.
template <typename F>
PyObject* with_exceptions(F&& call) {
  try {
    return call();
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const abi::__forced_unwind&) {  // the end of the thread
    throw;
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

bool is_true(PyObject* value) {
  const int yes = PyObject_IsTrue(value);
  if (yes < 0) throw py::error_already_set();
  return yes != 0;
}

PyObject* allreduce(PyObject* self, PyObject* const* given, Py_ssize_t n, PyObject* keywords) {
  // Borrowed for good, so that the defaults cost no object.
  static PyObject* const one = PyFloat_FromDouble(1.0);
  static PyObject* const zero = PyLong_FromLong(0);
  return with_exceptions([&] {
    const auto a = arguments_of(given, n, keywords);
    const auto or_else = [](PyObject* value, PyObject* otherwise) { return py::handle(value ? value : otherwise); };
    const uint64_t handle = engine_of(self).allreduce(a[0], a[1], a[2], a[3], or_else(a[4], one), or_else(a[5], one),
                                                      or_else(a[6], zero), a[7] && is_true(a[7]));
    return PyLong_FromUnsignedLongLong(handle);
  });
}

PyObject* reduce_plain(PyObject* self, PyObject* const* a, Py_ssize_t n) {
  return with_exceptions([&]() -> PyObject* {
    if (n != 8) throw py::type_error("reduce_plain() takes 8 arguments");
    const auto handle = engine_of(self).reduce_plain(a[0], a[1], a[2], a[3], a[4], a[5], a[6], is_true(a[7]));
    return handle ? PyLong_FromUnsignedLongLong(*handle) : py::none().release().ptr();
  });
}

PyObject* finish(PyObject* self, PyObject* const* a, Py_ssize_t n) {
  return with_exceptions([&] {
    if (n != 2 || !PyDict_Check(a[1])) throw py::type_error("finish() takes a handle and a dict");
    engine_of(self).finish(a[0], a[1]);
    return py::none().release().ptr();
  });
}

void add_method(py::class_<PyEngine>& engine, PyMethodDef& method) {
  PyObject* const made = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(engine.ptr()), &method);
  if (!made) throw py::error_already_set();
  engine.attr(method.ml_name) = py::reinterpret_steal<py::object>(made);
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
      auto call = type_of(tensor.ptr()).registration
                      ? plain_reduction(tensor, tensor, name, reduce_op, prescale, postscale, process_set, "")
                      : reduction(tensor, tensor, name, reduce_op, prescale, postscale, process_set);
      if (!call) {
        handles.append(py::none());
        continue;
      }
      call->more_follow = true;
      handles.append(submit(std::move(*call), {tensor, tensor}));
    } catch (const abi::__forced_unwind&) {  // the end of the thread
      throw;
    } catch (...) {
      handles.append(caught());
    }
  }
}

std::optional<frontend::Call> PyEngine::plain_reduction(py::handle tensor, py::handle output, py::handle name,
                                                        py::handle reduce_op, py::handle prescale, py::handle postscale,
                                                        py::handle process_set, const char* prefix) {
  const bool in_place = output.is(tensor);
  frontend::Call c{.kind = base::OpKind::Allreduce};
  const auto take = [&] {
    if (!memory_is_plain(tensor) || (!in_place && !memory_is_plain(output))) return;
    auto in = reducible_tensor(tensor);
    if (!in) return;
    if (!in_place) {
      auto out = reducible_tensor(output);
      if (!out) return;
      c.out.push_back(std::move(*out));
    }
    c.reduce_op = argument<int>(reduce_op, "op", kReduceOp);
    c.prescale = argument<double>(prescale, "prescale_factor", "a number");
    c.postscale = argument<double>(postscale, "postscale_factor", "a number");
    c.in.push_back(std::move(*in));
    if (in_place) c.out = c.in;
  };
  checked(c, name, process_set, take, prefix);
  if (c.in.empty()) return std::nullopt;
  return c;
}

std::optional<uint64_t> PyEngine::reduce_plain(py::handle tensor, py::handle output, py::handle name,
                                               py::handle reduce_op, py::handle prescale, py::handle postscale,
                                               py::handle process_set, bool wait) {
  if (!PyLong_CheckExact(reduce_op.ptr()) || !PyFloat_CheckExact(prescale.ptr()) ||
      !PyFloat_CheckExact(postscale.ptr()) || !PyLong_CheckExact(process_set.ptr()) ||
      !(name.is_none() || PyUnicode_CheckExact(name.ptr())))
    return std::nullopt;
  auto c = plain_reduction(tensor, output, name, reduce_op, prescale, postscale, process_set, kPrefix);
  if (!c) return std::nullopt;
  c->waits = wait;
  return submit(std::move(*c), {tensor, output});
}

void PyEngine::release_each(const std::vector<uint64_t>& handles) {
  for (const uint64_t handle : handles) release(handle);
}

void bind_allreduce(py::class_<PyEngine>& engine) {
  static PyMethodDef any{"allreduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allreduce)),
                         METH_FASTCALL | METH_KEYWORDS, kDoc};
  static PyMethodDef plain{"reduce_plain", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&reduce_plain)),
                           METH_FASTCALL, kPlainDoc};
  static PyMethodDef end{"finish", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&finish)), METH_FASTCALL,
                         kFinishDoc};
  for (PyMethodDef* method : {&any, &plain, &end}) add_method(engine, *method);
  engine.def("allreduce_each", &PyEngine::allreduce_each, py::arg("tensors"), py::arg("names"), py::arg("op"),
             py::arg("prescale"), py::arg("postscale"), py::arg("process_set"), py::arg("handles"));
  engine.def("release_each", &PyEngine::release_each, py::arg("handles"));
}

}  // namespace hvd::python
