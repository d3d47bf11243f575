// The two entries of an allreduce: a fast one for one tensor in host memory that needs no conversion, as mostly, and a
// general one. See engine.h.
#include <cxxabi.h>

#include <string>

#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/calls/checks.h"
#include "engine/python/arguments.h"
#include "engine/python/bindings.h"
#include "engine/python/engine.h"
#include "engine/python/program.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr const char* kDoc =
    "allreduce(inputs, outputs, name, op, prescale=1.0, postscale=1.0, process_set=0, wait=False, /)\n\n"
    "Returns a handle; 0 with `wait`, which waits for the result.";
constexpr const char* kTryDoc =
    "try_allreduce(tensor, output, name, op, prescale, postscale, process_set, wait, /)\n\n"
    "`name`: the user's, without the prefix that allreduce() needs. Returns a handle, 0 with `wait`; None if the "
    "arguments must be checked and converted for allreduce().";

bool read(PyObject* value, double& into) {
  if (!PyFloat_CheckExact(value)) return false;
  into = PyFloat_AS_DOUBLE(value);
  return true;
}

bool read(PyObject* value, int32_t& into) {
  int overflow = 0;
  if (!PyLong_CheckExact(value)) return false;
  const long number = PyLong_AsLongAndOverflow(value, &overflow);
  into = static_cast<int32_t>(number);
  return overflow == 0 && into == number;
}

bool read(PyObject* value, std::optional<std::string>& into) {
  if (value != Py_None && !PyUnicode_CheckExact(value)) return false;
  into = name_argument(value);
  return true;
}

// What the operation takes of two tensors; false if they must be checked and converted.
bool read_plain_tensors(py::handle tensor, py::handle output, calls::Call& call) {
  const bool in_place = output.is(tensor);
  if (!memory_shows_values(tensor) || (!in_place && !memory_shows_values(output))) return false;
  auto in = plain_tensor(tensor, in_place);
  if (!in || !front_end_reduces(tensor, in->dtype)) return false;
  if (!in_place) {
    auto out = plain_tensor(output, true);
    if (!out) return false;
    call.out.push_back(std::move(*out));
  }
  call.in.push_back(std::move(*in));
  if (in_place) call.out = call.in;
  return true;
}

// The only parser of the fast entry's arguments: tensor, output, name, op, prescale, postscale, process_set. False if
// one of them is of another kind, and then no exception is set.
bool read_plain_arguments(PyObject* const* a, calls::Call& call) {
  return read(a[3], call.reduce_op) && read(a[4], call.prescale) && read(a[5], call.postscale) &&
         read(a[6], call.process_set) && read(a[2], call.name) && read_plain_tensors(a[0], a[1], call);
}

uint64_t handle_of_general_call(PyEngine& engine, PyObject* const* a, Py_ssize_t n) {
  static PyObject* const one = PyFloat_FromDouble(1.0);
  static PyObject* const zero = PyLong_FromLong(0);
  if (n < 4 || n > 8) throw py::type_error("allreduce() takes 4 to 8 arguments");
  const auto given_or = [&](Py_ssize_t i, PyObject* fallback) { return i < n ? a[i] : fallback; };
  return allreduce(engine, a[0], a[1], a[2], a[3], given_or(4, one), given_or(5, one), given_or(6, zero),
                   given_or(7, Py_False) == Py_True);
}

std::optional<uint64_t> handle_of_fast_call(PyEngine& engine, PyObject* const* a, Py_ssize_t n) {
  if (n != 8) throw py::type_error("try_allreduce() takes 8 arguments");
  calls::Call call;
  if (!PyBool_Check(a[7]) || !read_plain_arguments(a, call)) return std::nullopt;
  if (call.name) call.name->insert(0, "allreduce.");
  call.waits = a[7] == Py_True;
  return engine.submit(std::move(call), {a[0], a[1]});
}

// A method of Engine with positional arguments. pybind11's dispatch of eight arguments would take as long as the
// agreement of two ranks.
template <auto kBody>
PyObject* method(PyObject* self, PyObject* const* a, Py_ssize_t n) {
  try {
    auto& engine = py::handle(self).cast<PyEngine&>();  // the method's descriptor has checked the type
    const std::optional<uint64_t> handle = kBody(engine, a, n);
    return handle ? PyLong_FromUnsignedLongLong(*handle) : py::none().release().ptr();
  } catch (const abi::__forced_unwind&) {  // the end of the thread
    throw;
  } catch (...) {
    set_python_error();
  }
  return nullptr;
}

template <auto kBody>
void add_method(py::class_<PyEngine>& engine, const char* name, const char* doc) {
  static PyMethodDef definition{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&method<kBody>)),
                                METH_FASTCALL, doc};
  PyObject* const made = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(engine.ptr()), &definition);
  if (!made) throw py::error_already_set();
  engine.attr(name) = py::reinterpret_steal<py::object>(made);
}

// An allreduce in place of each tensor, under its name. Appends to `handles` for each the handle, or the exception that
// it raises, or None: see try_allreduce(). (They are not returned: Ctrl-C during the call would cost the caller all of
// them.)
void try_allreduce_each(PyEngine& engine, const py::list& tensors, const py::list& names, py::handle op,
                        py::handle prescale, py::handle postscale, py::handle process_set, py::list handles) {
  calls::require(tensors.size() == names.size(), "as many names as tensors are needed");
  // Submitted requests are announced together, also if the last ones fail.
  struct Announcement {
    Engine& engine;
    ~Announcement() { engine.announce(); }
  } const announcement{engine.engine()};
  const base::CallSite site = call_site();
  for (size_t i = 0; i < tensors.size() && i < names.size(); ++i) {
    const py::object tensor = tensors[i], name = names[i];
    PyObject* const arguments[] = {tensor.ptr(),   tensor.ptr(),    name.ptr(),       op.ptr(),
                                   prescale.ptr(), postscale.ptr(), process_set.ptr()};
    try {
      calls::Call call;
      if (!read_plain_arguments(arguments, call)) {
        handles.append(py::none());
        continue;
      }
      call.more_follow = true;
      call.site = site;
      handles.append(engine.submit(std::move(call), {tensor, tensor}));
    } catch (const abi::__forced_unwind&) {  // the end of the thread
      throw;
    } catch (...) {
      set_python_error();
      handles.append(py::error_already_set().value());
    }
  }
}

// The calls of one group of ranks that are made in one order, under their numbers: see ordered() in engine.cc.
class OrderedCalls {
 public:
  // `prefix`: of the names of all calls, equal on all ranks.
  OrderedCalls(PyEngine& engine, int process_set, std::string prefix)
      : engine_(engine), process_set_(process_set), prefix_(std::move(prefix)) {}

  std::string next_name() { return prefix_ + std::to_string(count_++); }
  uint64_t count() const { return count_; }

  std::optional<uint64_t> try_allreduce(py::handle tensor, int reduce_op, double seconds) {
    calls::Call call{.process_set = process_set_, .reduce_op = reduce_op};
    if (!read_plain_tensors(tensor, tensor, call) || !base::is_reducible(call.in[0].dtype, reduce_op))
      return std::nullopt;
    call.name = next_name();
    call.in[0].shape = call.out[0].shape = {static_cast<int64_t>(call.in[0].count())};
    call.once = call.waits = true;
    return engine_.submit(std::move(call), {tensor, tensor}, deadline_in(seconds));
  }

 private:
  PyEngine& engine_;
  const int process_set_;
  const std::string prefix_;
  uint64_t count_ = 0;
};

}  // namespace

void bind_allreduce(py::module_& m, py::class_<PyEngine>& engine) {
  add_method<handle_of_general_call>(engine, "allreduce", kDoc);
  add_method<handle_of_fast_call>(engine, "try_allreduce", kTryDoc);
  engine.def("try_allreduce_each", &try_allreduce_each, py::arg("tensors"), py::arg("names"), py::arg("op"),
             py::arg("prescale"), py::arg("postscale"), py::arg("process_set"), py::arg("handles"));
  py::class_<OrderedCalls>(m, "OrderedCalls", "The calls of one group of ranks, which are made in one order.")
      .def(py::init<PyEngine&, int, std::string>(), py::arg("engine"), py::arg("process_set"), py::arg("prefix"),
           py::keep_alive<1, 2>())
      .def("next_name", &OrderedCalls::next_name)
      .def("count", &OrderedCalls::count)
      .def("try_allreduce", &OrderedCalls::try_allreduce, py::arg("tensor"), py::arg("reduce_op"), py::arg("seconds"),
           "Reduces a tensor in place, as if it were flat, and waits for `seconds` at most. Returns 0 if it is done, a "
           "handle if it is still under way; None, and no number is used, if the call must be checked and converted.");
}

}  // namespace hvd::python
