// The calls of one group of ranks that are made in one order: their numbers, and the short way of the most frequent
// one.
//
// For front ends that use PyEngine::ordered(). Methods are called with Python's lock; those that wait release it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

namespace hvd::python {

class PyEngine;

class OrderedCalls {
 public:
  // `process_set`: the group's, as users see it. `prefix`: of the names of all calls, equal on all ranks.
  OrderedCalls(PyEngine& engine, int process_set, std::string prefix)
      : engine_(engine), process_set_(process_set), prefix_(std::move(prefix)) {}

  std::string next_name() { return prefix_ + std::to_string(count_++); }
  uint64_t count() const { return count_; }
  // Reduces one tensor in place, as if it were flat, and waits for `seconds` at most. Returns 0 if it is done, a handle
  // if it is still under way; None, and no number is used, if the engine cannot take the tensor as it is.
  pybind11::object allreduce(pybind11::handle tensor, int reduce_op, double seconds);

 private:
  PyEngine& engine_;
  const int process_set_;
  const std::string prefix_;
  uint64_t count_ = 0;
};

void bind_ordered_calls(pybind11::module_& m);

}  // namespace hvd::python
