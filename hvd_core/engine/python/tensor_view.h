// From a Python object to the engine's view of its memory, without knowing any framework.
//
// It takes objects whose type has DLPack's C exchange API, NumPy arrays, and TensorRef (an address with its
// description, for frameworks without both). Called with Python's lock; keeps no reference to the object.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/calls/request.h"

namespace hvd::python {

struct TensorRef {
  uint64_t address = 0;
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  std::string device_type;
  int32_t device_id = 0;
  std::optional<uint64_t> stream;  // native; its work so far produces the data
  pybind11::object owner;          // keeps the memory alive; None if the caller does
  std::string staged_from;         // see calls::Tensor
  // The handle of the operation that was submitted with it and waits for begin().
  std::optional<uint64_t> deferred = {};
};
// Writes the handle of a deferred operation into the first of its inputs.
void note_deferred(pybind11::handle object, uint64_t handle);

// Throws pybind11::value_error for a dtype without a number, for memory that is not contiguous, and for a tensor
// without memory of its own.
calls::Tensor tensor_of(pybind11::handle object, bool writable);
// For a type with DLPack's C exchange API: nothing if tensor_of() would refuse the object, or on a device.
std::optional<calls::Tensor> plain_tensor(pybind11::handle object);
// Likewise, for a type that a front end has registered: nothing if the front end does not reduce its elements.
std::optional<calls::Tensor> reducible_tensor(pybind11::handle object);
// Whether the memory of a tensor, of a type that a front end has registered, has the values that the tensor shows;
// false also for an object that cannot tell. It may run Python code, and let go of Python's lock: ask before the
// address of any tensor is read. Throws what a signal's handler raised.
bool memory_is_plain(pybind11::handle object);
// One tensor, or a list or tuple of them.
std::vector<calls::Tensor> tensors_of(pybind11::handle object, bool writable);

// The address of a tensor whose type has DLPack's C exchange API; null for others.
const void* address_of(pybind11::handle tensor);

// A DLPack capsule ("dltensor") that owns the output's memory.
pybind11::capsule capsule_of(calls::Output output);
// A NumPy array that owns the output's memory, and is writable, which NumPy grants to no unversioned capsule. Types
// that NumPy lacks become unsigned integers of their size.
pybind11::object array_of(calls::Output output);

void bind_tensor_ref(pybind11::module_& m);

}  // namespace hvd::python
