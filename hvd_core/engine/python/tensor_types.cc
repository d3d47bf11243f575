// See tensor_types.h.
#include "engine/python/tensor_types.h"

#include <pybind11/stl.h>

#include <deque>
#include <utility>

#include "engine/python/tensor_view.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// Both are never deleted, because Python's objects cannot be deleted after the interpreter's end.
std::deque<Registration>& registrations() {
  static auto* all = new std::deque<Registration>;
  return *all;
}

// Types seen before: a handful per process.
std::vector<std::pair<PyTypeObject*, TensorType>>& known_types() {
  static auto* types = new std::vector<std::pair<PyTypeObject*, TensorType>>;
  return *types;
}

const DlExchangeApi* exchange_api(PyTypeObject* type) {
  const DlExchangeApi* api = nullptr;
  PyObject* attribute = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (attribute) {
    api = static_cast<const DlExchangeApi*>(PyCapsule_GetPointer(attribute, "dlpack_exchange_api"));
    Py_DECREF(attribute);
  }
  if (!api) PyErr_Clear();
  return api && api->major == 1 && api->borrow ? api : nullptr;
}

const Registration* registration_of(PyTypeObject* type) {
  for (const Registration& r : registrations())
    if (PyType_IsSubtype(type, r.type)) return &r;
  return nullptr;
}

// A tensor, or what a TensorRef says keeps its memory alive.
py::handle tensor_behind(py::handle object) {
  if (!type_of(object.ptr()).is_reference) return object;
  return object.cast<const TensorRef&>().owner;
}

template <typename F>
void for_each(py::handle tensors, F&& f) {
  if (!tensors) return;
  if (!PyTuple_Check(tensors.ptr())) return f(tensors);
  for (py::handle t : py::reinterpret_borrow<py::tuple>(tensors)) f(t);
}

// The list may change while the operation runs.
py::object held(py::handle object) {
  if (PyList_Check(object.ptr())) return py::reinterpret_steal<py::object>(PyList_AsTuple(object.ptr()));
  return py::reinterpret_borrow<py::object>(object);
}

void register_tensor_type(const py::type& type, py::object memory_owner, std::string without_memory,
                          const std::vector<int32_t>& reducible, py::object shows_other_values) {
  auto* raw = reinterpret_cast<PyTypeObject*>(type.ptr());
  Registration made{raw, std::move(memory_owner), std::move(without_memory), 0, {}};
  for (const int32_t dtype : reducible) made.reducible |= 1u << dtype;
  if (!shows_other_values.is_none()) made.shows_other_values = std::move(shows_other_values);
  for (Registration& r : registrations()) {
    if (r.type != raw) continue;
    r = std::move(made);
    return;
  }
  Py_INCREF(raw);
  registrations().push_back(std::move(made));
  for (auto& [known, facts] : known_types()) facts.registration = registration_of(known);
}

}  // namespace

TensorType type_of(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  for (const auto& [known, facts] : known_types())
    if (known == type) return facts;
  const TensorType facts{exchange_api(type), registration_of(type), py::isinstance<TensorRef>(object)};
  if (known_types().size() < 64) {
    Py_INCREF(type);  // so that no later type gets this address
    known_types().emplace_back(type, facts);
  }
  return facts;
}

void refuse_without_memory(py::handle object, const std::string& why) {
  const py::handle tensor = tensor_behind(object);
  const Registration* registered = type_of(tensor.ptr()).registration;
  // A framework's reason may go on with the frames of its stack, which go to the other ranks too.
  std::string reason = why.substr(0, why.find('\n'));
  if (!reason.empty() && reason.back() == '.') reason.pop_back();
  throw py::value_error("A tensor of type " + py::str(py::type::of(tensor)).cast<std::string>() +
                        " has no memory that can be sent: " + reason + "." +
                        (registered ? " " + registered->without_memory : ""));
}

Owners::Owners(py::handle inputs, py::handle outputs) {
  in_ = held(inputs);
  if (outputs && !outputs.is(inputs)) out_ = held(outputs);
}

void Owners::hold_memory() {
  const auto hold = [&](py::handle object) {
    const py::handle tensor = tensor_behind(object);
    const Registration* registered = type_of(tensor.ptr()).registration;
    if (!registered) return;
    PyObject* memory = PyObject_CallOneArg(registered->memory_owner.ptr(), tensor.ptr());
    if (memory)
      memory_.push_back(py::reinterpret_steal<py::object>(memory));
    else
      PyErr_Clear();  // then the tensor alone must do
  };
  if (!memory_.empty()) return;
  for_each(in_, hold);
  for_each(out_, hold);
}

void Owners::keep_for_good() {
  in_.release(), out_.release();
  for (py::object& m : memory_) m.release();
}

void bind_tensor_types(py::module_& m) {
  m.def(
      "register_tensor_type", &register_tensor_type, py::arg("type"), py::arg("memory_owner"),
      py::arg("without_memory"), py::arg("reducible") = std::vector<int32_t>(),
      py::arg("shows_other_values") = py::none(),
      "For front ends whose tensors can be given other memory. memory_owner: a function that returns the object that "
      "owns the memory of a tensor of this type, or of a subclass, now; an operation under way holds on to it. "
      "without_memory: what to do, for the error about a tensor that has no memory of its own. reducible: the numbers "
      "of the element types that Engine.reduce_plain() takes. shows_other_values: a function that says whether the "
      "memory of a "
      "tensor holds other values than the tensor shows.");
}

}  // namespace hvd::python
