// Checks of what a caller asks for, before it becomes a request. All throw InvalidRequest, which is the caller's
// ValueError, and which the binding reports to the other ranks. Pure functions, called with Python's lock.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "engine/control/signature.h"
#include "engine/queue/process_sets.h"
#include "engine/queue/request.h"

namespace hvd::bind {

using queue::InvalidRequest;

// The reduction that is an operation of its own for the engine, beside the HVD_* reduce ops.
constexpr int kAdasum = 100;

// Throws unless `ok`. The text is the parts one behind the other, strings and numbers, put together only if it is
// needed.
template <typename... Parts>
void require(bool ok, const Parts&... parts) {
  if (ok) [[likely]]
    return;
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidRequest(text.str());
}
// An argument as `T`, taken apart here and not by the call itself, so that a wrong one is reported like all mistakes.
// Throws TypeError: "<name> must be <what>, but is <value>".
template <typename T>
T argument(pybind11::handle value, const char* name, const char* what) {
  try {
    return value.cast<T>();
  } catch (const pybind11::cast_error&) {
    throw pybind11::type_error(std::string(name) + " must be " + what + ", but is " +
                               pybind11::repr(value).cast<std::string>());
  }
}
// A scale factor. 0 is refused: to backends it means that there is none.
double factor_of(pybind11::handle value, const char* name);
void same_layout(const std::vector<queue::Tensor>& in, const std::vector<queue::Tensor>& out);
// As many outputs as inputs, or none.
void same_device(const std::vector<queue::Tensor>& in, const std::vector<queue::Tensor>& out);
control::SignatureFields fields_of(control::OpKind kind, const std::vector<queue::Tensor>& in);
void check_floating(const std::vector<queue::Tensor>& in);
void check_reducible(const std::vector<queue::Tensor>& in, int op);
// Rows of `t` for each of `ranks` ranks. Horovod's rules: no entries is an equal split; rows that no entry covers are
// not sent.
std::vector<int64_t> splits_of(const queue::Tensor& t, std::vector<int64_t> splits, size_t ranks);

}  // namespace hvd::bind
