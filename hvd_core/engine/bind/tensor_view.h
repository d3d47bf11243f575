// From a Python object to the engine's view of its memory, without knowing any framework.
//
// Understood: objects whose type offers DLPack's C exchange API, NumPy arrays, and TensorRef (an address with its
// description, for frameworks that have neither). Holds Python's lock; keeps no reference to the object.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/queue/request.h"

namespace hvd::bind {

struct TensorRef {
  uint64_t address = 0;
  std::vector<int64_t> shape;
  int32_t dtype = 0;
  std::string device_type;
  int32_t device_id = 0;
  std::optional<uint64_t> stream;  // native; what it has been given so far makes the data
  pybind11::object owner;          // what the memory lives as long as; none where the caller sees to that
};

// Throws pybind11::value_error for what cannot be used: a dtype without a number, memory that is not contiguous.
queue::Tensor tensor_of(pybind11::handle object, bool writable);
// One tensor, or a list or tuple of them.
std::vector<queue::Tensor> tensors_of(pybind11::handle object, bool writable);

// The objects that the tensors of an operation came from; their memory lives as long as these. With Python's lock.
struct Owners {
  pybind11::object in, out;
  Owners() = default;
  Owners(pybind11::handle inputs, pybind11::handle outputs);
  // For as long as the process lives.
  void keep_for_good() { in.release(), out.release(); }
};

// A DLPack capsule ("dltensor") that owns the output's memory.
pybind11::capsule capsule_of(queue::Output output);

void bind_tensor_ref(pybind11::module_& m);

}  // namespace hvd::bind
