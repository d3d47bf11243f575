// See tensor_view.h.
#include "engine/python/tensor_view.h"

#include <hvd/backend_abi.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <utility>

#include "engine/python/tensor_types.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using calls::Tensor;

// ---- DLPack

constexpr int32_t kDlCpu = 1;

struct DtypeRow {
  uint8_t code, bits;
};
// By HVD_* number.
constexpr std::array<DtypeRow, HVD_DTYPE_COUNT> kDl{{{1, 8},
                                                     {0, 8},
                                                     {1, 16},
                                                     {0, 16},
                                                     {0, 32},
                                                     {0, 64},
                                                     {2, 16},
                                                     {2, 32},
                                                     {2, 64},
                                                     {6, 8},
                                                     {4, 16},
                                                     {10, 8},
                                                     {12, 8},
                                                     {1, 32},
                                                     {1, 64}}};

int32_t dtype_of(DlType t) {
  for (size_t i = 0; i < kDl.size(); ++i)
    if (t.lanes == 1 && kDl[i].code == t.code && kDl[i].bits == t.bits) return static_cast<int32_t>(i);
  return -1;
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

Tensor from_dlpack(const DlExchangeApi* api, PyObject* o) {
  DlTensor d;
  if (api->borrow(o, &d) != 0) {
    const py::error_already_set error;
    refuse_without_memory(o, py::str(error.value()).cast<std::string>());
  }
  Tensor t;
  t.dtype = dtype_of(d.dtype);
  if (t.dtype < 0)
    throw py::value_error("Tensor type " + py::str(reinterpret_cast<PyObject*>(Py_TYPE(o))).cast<std::string>() +
                          " (DLPack code " + std::to_string(d.dtype.code) + ", " + std::to_string(d.dtype.bits) +
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

// ---- NumPy

int32_t numpy_dtype(const py::dtype& d) {
  const auto size = d.itemsize();
  switch (d.kind()) {
    case 'b':
      return HVD_BOOL;
    case 'u':
      return size == 1 ? HVD_UINT8 : size == 2 ? HVD_UINT16 : size == 4 ? HVD_UINT32 : HVD_UINT64;
    case 'i':
      return size == 1 ? HVD_INT8 : size == 2 ? HVD_INT16 : size == 4 ? HVD_INT32 : HVD_INT64;
    case 'f':
      return size == 2 ? HVD_FLOAT16 : size == 4 ? HVD_FLOAT32 : size == 8 ? HVD_FLOAT64 : -1;
    default:
      break;
  }
  // Extension types (ml_dtypes) can be told apart by their names only.
  const auto name = d.attr("name").cast<std::string>();
  if (name == "bfloat16") return HVD_BFLOAT16;
  if (name == "float8_e4m3fn") return HVD_FLOAT8_E4M3FN;
  if (name == "float8_e5m2") return HVD_FLOAT8_E5M2;
  return -1;
}

bool is_native(const py::dtype& d) {
  constexpr char kOther = std::endian::native == std::endian::little ? '>' : '<';
  return d.byteorder() != kOther;
}

Tensor from_numpy(const py::array& a, bool writable) {
  Tensor t;
  const py::dtype type = a.dtype();
  t.dtype = numpy_dtype(type);
  if (t.dtype < 0 || !is_native(type))
    throw py::value_error("Tensor type " + py::str(type).cast<std::string>() + " is not supported.");
  if (!(a.flags() & py::array::c_style)) not_contiguous();
  if (writable && !a.writeable()) throw py::value_error("The array for the result is read-only.");
  t.shape.assign(a.shape(), a.shape() + a.ndim());
  t.data = const_cast<void*>(a.data());
  return t;
}

Tensor described(py::handle object, bool writable) {
  if (const auto* api = type_of(object.ptr()).api) return from_dlpack(api, object.ptr());
  if (py::isinstance<py::array>(object)) return from_numpy(py::reinterpret_borrow<py::array>(object), writable);
  if (py::isinstance<TensorRef>(object)) {
    const auto& ref = object.cast<const TensorRef&>();
    Tensor t;
    t.data = reinterpret_cast<void*>(ref.address);
    t.dtype = ref.dtype;
    t.shape = ref.shape;
    t.device_type = ref.device_type;
    t.device_id = ref.device_id;
    t.has_stream = ref.stream.has_value();
    if (ref.stream) t.stream = reinterpret_cast<void*>(*ref.stream);
    t.staged_from = ref.staged_from;
    return t;
  }
  throw py::type_error("expected a NumPy array or a tensor with DLPack's C exchange API, got " +
                       py::str(py::type::of(object)).cast<std::string>());
}

}  // namespace

Tensor tensor_of(py::handle object, bool writable) {
  Tensor t = described(object, writable);
  if (!t.data && t.bytes() != 0) refuse_without_memory(object, "its address is null");
  return t;
}

std::optional<Tensor> plain_tensor(py::handle object) {
  const auto* api = type_of(object.ptr()).api;
  DlTensor d;
  if (!api) return std::nullopt;
  if (api->borrow(object.ptr(), &d) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  Tensor t;
  t.dtype = dtype_of(d.dtype);
  if (t.dtype < 0 || d.device.type != kDlCpu || !is_contiguous(d)) return std::nullopt;
  t.shape.assign(d.shape, d.shape + d.ndim);
  t.data = static_cast<char*>(d.data) + d.byte_offset;
  if (!d.data && t.bytes() != 0) return std::nullopt;
  return t;
}

std::optional<Tensor> reducible_tensor(py::handle object) {
  const Registration* const registered = type_of(object.ptr()).registration;
  if (!registered) return std::nullopt;
  auto t = plain_tensor(object);
  return t && (registered->reducible >> t->dtype & 1) ? t : std::nullopt;
}

bool memory_is_plain(py::handle object) {
  const Registration* const registered = type_of(object.ptr()).registration;
  if (!registered) return false;
  if (!registered->shows_other_values) return true;
  const auto other =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(registered->shows_other_values.ptr(), object.ptr()));
  if (other) return other.is(py::bool_(false));
  for (PyObject* kind : {PyExc_AttributeError, PyExc_RuntimeError, PyExc_TypeError}) {
    if (!PyErr_ExceptionMatches(kind)) continue;
    PyErr_Clear();  // a layout without it, say
    return false;
  }
  throw py::error_already_set();
}

const void* address_of(py::handle tensor) {
  const auto* api = type_of(tensor.ptr()).api;
  DlTensor d;
  if (!api) return nullptr;
  if (api->borrow(tensor.ptr(), &d) == 0) return static_cast<char*>(d.data) + d.byte_offset;
  PyErr_Clear();
  return nullptr;
}

void note_deferred(py::handle object, uint64_t handle) {
  const bool several = PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
  const py::handle first = several ? py::handle(PySequence_Fast_GET_ITEM(object.ptr(), 0)) : object;
  if (py::isinstance<TensorRef>(first)) first.cast<TensorRef&>().deferred = handle;
}

std::vector<Tensor> tensors_of(py::handle object, bool writable) {
  std::vector<Tensor> tensors;
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    PyObject* fast = object.ptr();
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    tensors.reserve(static_cast<size_t>(n));
    for (Py_ssize_t i = 0; i < n; ++i) tensors.push_back(tensor_of(PySequence_Fast_GET_ITEM(fast, i), writable));
  } else {
    tensors.push_back(tensor_of(object, writable));
  }
  return tensors;
}

py::capsule capsule_of(calls::Output output) {
  struct Holder {
    DlManagedTensor managed;
    calls::Output output;
  };
  auto* holder = new Holder{{}, std::move(output)};
  auto& t = holder->managed.tensor;
  const auto row = kDl[static_cast<size_t>(holder->output.dtype)];
  t.data = holder->output.memory();
  t.device = {kDlCpu, 0};
  t.ndim = static_cast<int32_t>(holder->output.shape.size());
  t.dtype = {row.code, row.bits, 1};
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
  // By HVD_* number.
  constexpr std::array<const char*, HVD_DTYPE_COUNT> kNumpy{"u1", "i1", "u2", "i2", "i4", "i8", "f2", "f4",
                                                            "f8", "?",  "u2", "u1", "u1", "u4", "u8"};
  const py::dtype type(kNumpy[static_cast<size_t>(output.dtype)]);
  auto holder = std::make_unique<calls::Output>(std::move(output));
  const void* data = holder->memory();
  const std::vector<py::ssize_t> shape(holder->shape.begin(), holder->shape.end());
  const py::capsule base(holder.get(), [](void* memory) { delete static_cast<calls::Output*>(memory); });
  (void)holder.release();
  return py::array(type, shape, data, base);
}

void bind_tensor_ref(py::module_& m) {
  py::class_<TensorRef>(
      m, "TensorRef",
      "An address with its description: a tensor of a framework without DLPack's API, or on a device. "
      "stream: the native stream whose work so far makes the data; None: they are ready. owner: what keeps the memory "
      "alive, the tensor itself; the engine holds on to it if a backend does not let go of the memory. staged_from: "
      "the "
      "type of the device whose tensor the caller copies to this host memory; the operation begins with "
      "Engine.begin().")
      .def(py::init([](uint64_t address, std::vector<int64_t> shape, int32_t dtype, std::string device_type,
                       int32_t device_id, std::optional<uint64_t> stream, py::object owner, std::string staged_from) {
             return TensorRef{address,          std::move(shape),      dtype, std::move(device_type), device_id, stream,
                              std::move(owner), std::move(staged_from)};
           }),
           py::arg("ptr"), py::arg("shape"), py::arg("dtype"), py::arg("device_type") = "cpu", py::arg("device_id") = 0,
           py::arg("stream") = py::none(), py::arg("owner") = py::none(), py::arg("staged_from") = "")
      .def_readonly("deferred", &TensorRef::deferred,
                    "The handle of the last operation that was submitted with this copy as an input and waits for "
                    "Engine.begin(); None before that. For a caller that was interrupted before it got the handle.");
}

}  // namespace hvd::python
