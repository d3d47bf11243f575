// The types of Python's tensors as the binding knows them: their DLPack table, and the functions of a front end.
//
// A framework may give a tensor other memory while an operation uses the memory that it had. So the engine holds on to
// the object that owned the memory at the submission (a storage), which a registered function returns. Called with
// Python's lock. The DLPack structs are declared as its specification lays them out.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::python {

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

struct Registration {
  PyTypeObject* type;             // and its subclasses
  pybind11::object memory_owner;  // a function of a tensor
  std::string without_memory;     // the end of the message for a tensor without memory of its own
  uint32_t reducible = 0;         // the element types that the front end reduces, as bits
  // A function of a tensor: whether its memory has other values than it shows. Null: it never has.
  pybind11::object shows_other_values;
};

struct TensorType {
  const DlExchangeApi* api = nullptr;          // null: the type has no table
  const Registration* registration = nullptr;  // null: no front end has registered the type
  bool is_reference = false;                   // TensorRef
};
TensorType type_of(PyObject* object);

// Throws pybind11::value_error: the tensor has no memory that the engine can use.
[[noreturn]] void refuse_without_memory(pybind11::handle object, const std::string& why);

// The objects of an operation's tensors, which keep their memory alive.
class Owners {
 public:
  Owners() = default;
  Owners(pybind11::handle inputs, pybind11::handle outputs);
  // Keeps the memory that the tensors have now, also if the tensors are given other memory. Before the caller goes on
  // while the operation is under way.
  void hold_memory();
  bool holds_memory() const { return !memory_.empty(); }
  // The tensors that are written: the outputs, or the inputs of an operation in place.
  pybind11::handle written() const { return out_ ? out_ : in_; }
  const pybind11::object& inputs() const { return in_; }
  // Until the process ends.
  void keep_for_good();

 private:
  pybind11::object in_, out_;
  std::vector<pybind11::object> memory_;
};

void bind_tensor_types(pybind11::module_& m);

}  // namespace hvd::python
