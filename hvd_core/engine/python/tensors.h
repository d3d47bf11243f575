// From Python's tensors to the engine's view of their memory, without knowing any framework; and the objects that keep
// this memory alive. With the GIL.
//
// A tensor is an object whose type has DLPack's C exchange API, a NumPy array, or a TensorRef (an address with its
// description, for frameworks without both).
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/calls/request.h"

namespace hvd::python {

struct TensorRef {
  calls::Tensor tensor;
  pybind11::object owner;  // keeps the memory alive; None if the caller does
  // The handle of the operation that was submitted with it and waits for begin().
  std::optional<uint64_t> deferred = {};
};

// Throws TypeError for an object that is no tensor, and ValueError for a dtype that the engine lacks, for memory that
// is not contiguous, and for a tensor without memory of its own.
calls::Tensor tensor_of(pybind11::handle object, bool writable);
// One tensor, or a list or tuple of them.
std::vector<calls::Tensor> tensors_of(pybind11::handle object, bool writable);
// A tensor in host memory that needs no conversion; nothing for others. Not for TensorRef.
std::optional<calls::Tensor> plain_tensor(pybind11::handle object, bool writable);
// Whether the memory of a tensor holds the values that the tensor shows; false also for an object that cannot tell. It
// may run Python code, which may release the GIL: ask before the address of any tensor is read. Throws what a signal's
// handler raised.
bool memory_shows_values(pybind11::handle object);
// Whether the front end of the tensor's type reduces elements of `dtype`.
bool front_end_reduces(pybind11::handle object, int32_t dtype);
// Writes the handle of a deferred operation into the first of its inputs.
void note_deferred(pybind11::handle inputs, uint64_t handle);

// The objects of an operation's tensors, which keep their memory alive.
//
// A framework may give a tensor other memory while an operation uses the memory that it had. So an operation under way
// holds on to the object that owned the memory at the submission (a storage), which a front end's function returns.
class Owners {
 public:
  Owners() = default;
  Owners(pybind11::handle inputs, pybind11::handle outputs);
  // Before the caller goes on while the operation is under way.
  void hold_memory();
  // The tensors that are written: the outputs, or the inputs of an operation in place.
  pybind11::handle written() const { return out_ ? out_ : in_; }
  const pybind11::object& inputs() const { return in_; }
  // Whether a tensor that is written has other memory than the operation, after hold_memory().
  bool memory_was_exchanged(const std::vector<calls::Tensor>& used) const;
  // Until the process ends.
  void keep_permanently();

 private:
  pybind11::object in_, out_;
  std::vector<pybind11::object> memory_;
};

// A DLPack capsule ("dltensor") that owns the output's memory.
pybind11::capsule capsule_of(calls::Output output);
// A NumPy array that owns the output's memory, and is writable, which NumPy grants to no unversioned capsule. Types
// that NumPy lacks become unsigned integers of their size.
pybind11::object array_of(calls::Output output);

}  // namespace hvd::python
