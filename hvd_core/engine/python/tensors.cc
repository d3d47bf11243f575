// See tensors.h. The DLPack structs are declared as its specification lays them out.
#include "engine/python/tensors.h"

#include <hvd/backend_abi.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <memory>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/python/bindings.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using calls::Tensor;

// ------------------------------------------------------------------------------------------------- types of tensors

struct DlDevice {
  int32_t type, id;
};
struct DlType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};
struct DlExchangeApi {
  uint32_t major, minor;
  DlExchangeApi* previous;
  void* allocator;
  int (*managed_from_object)(void*, void**);
  int (*object_from_managed)(void*, void**);
  int (*borrow)(void*, DlTensor*);
  int (*current_stream)(int32_t, int32_t, void**);
};

// What a front end says about its tensors: see register_tensor_type().
struct Registration {
  PyTypeObject* type;             // and its subclasses
  py::object memory_owner;        // a function of a tensor
  std::string without_memory;     // the end of the message for a tensor without memory of its own
  uint32_t reducible = 0;         // the element types that the front end reduces, as bits
  py::object shows_other_values;  // a function of a tensor; null: the memory has the values that the tensor shows
};

enum class Kind { Dlpack, Array, Reference, Other };

struct TensorType {
  Kind kind = Kind::Other;
  const DlExchangeApi* api = nullptr;          // of Kind::Dlpack
  const Registration* registration = nullptr;  // null: no front end has registered the type
};

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

TensorType type_of(py::handle object) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  for (const auto& [known, facts] : known_types())
    if (known == type) return facts;
  TensorType facts{Kind::Other, exchange_api(type), registration_of(type)};
  if (facts.api)
    facts.kind = Kind::Dlpack;
  else if (py::isinstance<py::array>(object))
    facts.kind = Kind::Array;
  else if (py::isinstance<TensorRef>(object))
    facts.kind = Kind::Reference;
  if (known_types().size() < 64) {
    Py_INCREF(type);  // so that no later type gets this address
    known_types().emplace_back(type, facts);
  }
  return facts;
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

// A tensor, or what a TensorRef says keeps its memory alive.
py::handle tensor_behind(py::handle object) {
  if (type_of(object).kind != Kind::Reference) return object;
  return object.cast<const TensorRef&>().owner;
}

// Throws ValueError: the tensor has no memory that the engine can use.
[[noreturn]] void refuse_without_memory(py::handle object, const std::string& why) {
  const py::handle tensor = tensor_behind(object);
  const Registration* registered = type_of(tensor).registration;
  // A framework's reason may go on with the frames of its stack, which go to the other ranks too.
  std::string reason = why.substr(0, why.find('\n'));
  if (!reason.empty() && reason.back() == '.') reason.pop_back();
  throw py::value_error("A tensor of type " + py::str(py::type::of(tensor)).cast<std::string>() +
                        " has no memory that can be sent: " + reason + "." +
                        (registered ? " " + registered->without_memory : ""));
}

// ---------------------------------------------------------------------------------------------------- their memory

constexpr int32_t kDlCpu = 1;

// An element type as DLPack describes it, and its kind in NumPy; 0: only extensions of NumPy have it, under `name`.
struct Dtype {
  uint8_t code, bits;
  char numpy_kind;
  const char* name = nullptr;
};
// By HVD_* code.
constexpr std::array<Dtype, HVD_DTYPE_COUNT> kDtypes{{{1, 8, 'u'},
                                                      {0, 8, 'i'},
                                                      {1, 16, 'u'},
                                                      {0, 16, 'i'},
                                                      {0, 32, 'i'},
                                                      {0, 64, 'i'},
                                                      {2, 16, 'f'},
                                                      {2, 32, 'f'},
                                                      {2, 64, 'f'},
                                                      {6, 8, 'b'},
                                                      {4, 16, 0, "bfloat16"},
                                                      {10, 8, 0, "float8_e4m3fn"},
                                                      {12, 8, 0, "float8_e5m2"},
                                                      {1, 32, 'u'},
                                                      {1, 64, 'u'}}};

// The HVD_* code of the type for which `is_it` is true; -1 if there is none.
template <typename F>
int32_t find_dtype(F&& is_it) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(), is_it);
  return found == kDtypes.end() ? -1 : static_cast<int32_t>(found - kDtypes.begin());
}

int32_t dtype_of(DlType t) {
  return find_dtype([&](const Dtype& d) { return t.lanes == 1 && d.code == t.code && d.bits == t.bits; });
}

int32_t dtype_of(const py::dtype& t) {
  const auto bits = t.itemsize() * 8;
  const int32_t found = find_dtype([&](const Dtype& d) { return d.numpy_kind == t.kind() && d.bits == bits; });
  if (found >= 0) return found;
  const auto name = t.attr("name").cast<std::string>();  // extensions (ml_dtypes) may have the kind of another type
  return find_dtype([&](const Dtype& d) { return d.name && d.name == name; });
}

bool is_contiguous(const DlTensor& d) {
  int64_t expected = 1;
  const bool empty = std::find(d.shape, d.shape + d.ndim, 0) != d.shape + d.ndim;
  for (int32_t i = d.ndim - 1; d.strides && i >= 0 && !empty; --i) {
    if (d.shape[i] != 1 && d.strides[i] != expected) return false;
    expected *= d.shape[i];
  }
  return true;
}

[[noreturn]] void not_contiguous() { throw py::value_error("Tensor is required to be contiguous."); }

Tensor from_dlpack(const DlExchangeApi* api, py::handle o) {
  DlTensor d;
  if (api->borrow(o.ptr(), &d) != 0) {
    const py::error_already_set error;
    refuse_without_memory(o, py::str(error.value()).cast<std::string>());
  }
  Tensor t;
  t.dtype = dtype_of(d.dtype);
  if (t.dtype < 0)
    throw py::value_error("Tensor type " + py::str(py::type::of(o)).cast<std::string>() + " (DLPack code " +
                          std::to_string(d.dtype.code) + ", " + std::to_string(d.dtype.bits) +
                          " bits) is not supported.");
  t.shape.assign(d.shape, d.shape + d.ndim);
  if (!is_contiguous(d)) not_contiguous();
  t.data = static_cast<char*>(d.data) + d.byte_offset;
  if (d.device.type != kDlCpu) {
    t.device_type = "dlpack:" + std::to_string(d.device.type);
    t.device_id = d.device.id;
  }
  return t;
}

bool is_native(const py::dtype& d) {
  constexpr char kOther = std::endian::native == std::endian::little ? '>' : '<';
  return d.byteorder() != kOther;
}

Tensor from_numpy(const py::array& a, bool writable) {
  Tensor t;
  const py::dtype type = a.dtype();
  t.dtype = dtype_of(type);
  if (t.dtype < 0 || !is_native(type))
    throw py::value_error("Tensor type " + py::str(type).cast<std::string>() + " is not supported.");
  if (!(a.flags() & py::array::c_style)) not_contiguous();
  if (writable && !a.writeable()) throw py::value_error("The array for the result is read-only.");
  t.shape.assign(a.shape(), a.shape() + a.ndim());
  t.data = const_cast<void*>(a.data());
  return t;
}

Tensor described(py::handle object, bool writable) {
  const TensorType type = type_of(object);
  switch (type.kind) {
    case Kind::Dlpack:
      return from_dlpack(type.api, object);
    case Kind::Array:
      return from_numpy(py::reinterpret_borrow<py::array>(object), writable);
    case Kind::Reference:
      return object.cast<const TensorRef&>().tensor;
    case Kind::Other:
      break;
  }
  throw py::type_error("expected a NumPy array or a tensor with DLPack's C exchange API, got " +
                       py::str(py::type::of(object)).cast<std::string>());
}

// The address of a tensor whose type has DLPack's C exchange API; null for others.
const void* address_of(py::handle tensor) {
  const auto* api = type_of(tensor).api;
  DlTensor d;
  if (!api) return nullptr;
  if (api->borrow(tensor.ptr(), &d) == 0) return static_cast<char*>(d.data) + d.byte_offset;
  PyErr_Clear();
  return nullptr;
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

}  // namespace

Tensor tensor_of(py::handle object, bool writable) {
  Tensor t = described(object, writable);
  if (!t.data && t.bytes() != 0) refuse_without_memory(object, "its address is null");
  return t;
}

std::vector<Tensor> tensors_of(py::handle object, bool writable) {
  std::vector<Tensor> tensors;
  if (!PyList_Check(object.ptr()) && !PyTuple_Check(object.ptr())) {
    tensors.push_back(tensor_of(object, writable));
    return tensors;
  }
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(object.ptr());
  tensors.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) tensors.push_back(tensor_of(PySequence_Fast_GET_ITEM(object.ptr(), i), writable));
  return tensors;
}

std::optional<Tensor> plain_tensor(py::handle object, bool writable) {
  const Kind kind = type_of(object).kind;
  if (kind != Kind::Dlpack && kind != Kind::Array) return std::nullopt;
  try {
    Tensor t = tensor_of(object, writable);
    if (t.on_host()) return t;
  } catch (const py::value_error&) {  // the general path reports it
  }
  return std::nullopt;
}

bool memory_shows_values(py::handle object) {
  const TensorType type = type_of(object);
  if (!type.registration) return type.kind == Kind::Array;
  const py::object& shows_other_values = type.registration->shows_other_values;
  if (!shows_other_values) return true;
  const auto other = py::reinterpret_steal<py::object>(PyObject_CallOneArg(shows_other_values.ptr(), object.ptr()));
  if (other) return other.is(py::bool_(false));
  for (PyObject* kind : {PyExc_AttributeError, PyExc_RuntimeError, PyExc_TypeError}) {
    if (!PyErr_ExceptionMatches(kind)) continue;
    PyErr_Clear();  // a layout without it, say
    return false;
  }
  throw py::error_already_set();
}

bool front_end_reduces(py::handle object, int32_t dtype) {
  const Registration* const registered = type_of(object).registration;
  return registered ? registered->reducible >> dtype & 1 : base::is_reducible(dtype);
}

void note_deferred(py::handle inputs, uint64_t handle) {
  const bool several = PyList_Check(inputs.ptr()) || PyTuple_Check(inputs.ptr());
  const py::handle first = several ? py::handle(PySequence_Fast_GET_ITEM(inputs.ptr(), 0)) : inputs;
  if (type_of(first).kind == Kind::Reference) first.cast<TensorRef&>().deferred = handle;
}

Owners::Owners(py::handle inputs, py::handle outputs) {
  in_ = held(inputs);
  if (outputs && !outputs.is(inputs)) out_ = held(outputs);
}

void Owners::hold_memory() {
  const auto hold = [&](py::handle object) {
    const py::handle tensor = tensor_behind(object);
    const Registration* registered = type_of(tensor).registration;
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

bool Owners::memory_was_exchanged(const std::vector<Tensor>& used) const {
  if (memory_.empty()) return false;
  const auto tensors = py::reinterpret_borrow<py::object>(written());  // this may be deleted while Python code runs
  size_t i = 0;
  bool exchanged = false;
  for_each(tensors, [&](py::handle tensor) {
    const void* now = i < used.size() ? address_of(tensor) : nullptr;
    exchanged |= now && now != used[i++].data;
  });
  return exchanged;
}

void Owners::keep_permanently() {
  in_.release(), out_.release();
  for (py::object& m : memory_) m.release();
}

// ------------------------------------------------------------------------------------------------------ their results

py::capsule capsule_of(calls::Output output) {
  struct Holder {
    DlManagedTensor managed;
    calls::Output output;
  };
  auto* holder = new Holder{{}, std::move(output)};
  auto& t = holder->managed.tensor;
  const Dtype& dtype = kDtypes[static_cast<size_t>(holder->output.dtype)];
  t.data = holder->output.memory();
  t.device = {kDlCpu, 0};
  t.ndim = static_cast<int32_t>(holder->output.shape.size());
  t.dtype = {dtype.code, dtype.bits, 1};
  t.shape = holder->output.shape.data();
  t.strides = nullptr;
  t.byte_offset = 0;
  holder->managed.context = holder;
  holder->managed.deleter = [](DlManagedTensor* self) { delete static_cast<Holder*>(self->context); };
  // A capsule that was not consumed still owns the tensor. A consumer renames it.
  PyObject* capsule = PyCapsule_New(&holder->managed, "dltensor", [](PyObject* c) {
    if (!PyCapsule_IsValid(c, "dltensor")) return;
    auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(c, "dltensor"));
    managed->deleter(managed);
  });
  if (!capsule) {
    delete holder;
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::capsule>(capsule);
}

py::object array_of(calls::Output output) {
  const Dtype& dtype = kDtypes[static_cast<size_t>(output.dtype)];
  const py::dtype type((dtype.numpy_kind ? dtype.numpy_kind : 'u') + std::to_string(dtype.bits / 8));
  auto holder = std::make_unique<calls::Output>(std::move(output));
  const void* data = holder->memory();
  const std::vector<py::ssize_t> shape(holder->shape.begin(), holder->shape.end());
  const py::capsule base(holder.get(), [](void* memory) { delete static_cast<calls::Output*>(memory); });
  (void)holder.release();
  return py::array(type, shape, data, base);
}

void bind_tensors(py::module_& m) {
  py::class_<TensorRef>(
      m, "TensorRef",
      "An address with its description: a tensor of a framework without DLPack's API, or on a device. "
      "stream: the native stream whose work so far makes the data; None: they are ready. owner: what keeps the memory "
      "alive, the tensor itself; the engine holds on to it if a backend does not let go of the memory. staged_from: "
      "the type of the device whose tensor the caller copies to this host memory; the operation begins with "
      "Engine.begin().")
      .def(py::init([](uint64_t address, std::vector<int64_t> shape, int32_t dtype, std::string device_type,
                       int32_t device_id, std::optional<uint64_t> stream, py::object owner, std::string staged_from) {
             Tensor t{.data = reinterpret_cast<void*>(address),
                      .dtype = dtype,
                      .shape = std::move(shape),
                      .device_type = std::move(device_type),
                      .device_id = device_id,
                      .has_stream = stream.has_value(),
                      .stream = reinterpret_cast<void*>(stream.value_or(0)),
                      .staged_from = std::move(staged_from)};
             return TensorRef{std::move(t), std::move(owner)};
           }),
           py::arg("ptr"), py::arg("shape"), py::arg("dtype"), py::arg("device_type") = "cpu", py::arg("device_id") = 0,
           py::arg("stream") = py::none(), py::arg("owner") = py::none(), py::arg("staged_from") = "")
      .def_readonly("deferred", &TensorRef::deferred,
                    "The handle of the last operation that was submitted with this copy as an input and waits for "
                    "Engine.begin(); None before that. For a caller that was interrupted before it got the handle.");
  m.def("register_tensor_type", &register_tensor_type, py::arg("type"), py::arg("memory_owner"),
        py::arg("without_memory"), py::arg("reducible") = std::vector<int32_t>(),
        py::arg("shows_other_values") = py::none(),
        "For front ends whose tensors can be given other memory. memory_owner: a function that returns the object that "
        "owns the memory of a tensor of this type, or of a subclass, now; an operation under way holds on to it. "
        "without_memory: what to do, for the error about a tensor that has no memory of its own. reducible: the codes "
        "of the element types that Engine.try_allreduce() takes. shows_other_values: a function that says whether the "
        "memory of a tensor holds other values than the tensor shows.");
}

}  // namespace hvd::python
