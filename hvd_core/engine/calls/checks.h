// Checks of a call's arguments, before it becomes a request. Each throws InvalidRequest, which callers see as
// ValueError and which is reported to the other ranks. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <vector>

#include "engine/agreement/signature.h"
#include "engine/base/operations.h"
#include "engine/calls/process_sets.h"
#include "engine/calls/request.h"

namespace hvd::calls {

using calls::InvalidRequest;

// Throws unless `ok`. The text is made of the parts, strings and numbers, and only if it is needed.
template <typename... Parts>
void require(bool ok, const Parts&... parts) {
  if (ok) [[likely]]
    return;
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidRequest(text.str());
}
// Refuses the factor 0, which means "no factor" to backends.
inline void check_factor(double factor, const char* name) {
  require(factor != 0, name, " must not be 0; multiply the result by 0 instead");
}
void same_layout(const std::vector<calls::Tensor>& in, const std::vector<calls::Tensor>& out);
// There are as many outputs as inputs, or no outputs.
void same_device(const std::vector<calls::Tensor>& in, const std::vector<calls::Tensor>& out);
// No result of a reduction goes to memory from which another tensor of the call is still to be read. With a result in
// the memory of its own input, the reduction is in place.
void check_apart(const std::vector<calls::Tensor>& in, const std::vector<calls::Tensor>& out);
agreement::SignatureFields fields_of(base::OpKind kind, const std::vector<calls::Tensor>& in);
void check_floating(const std::vector<calls::Tensor>& in);
void check_reducible(const std::vector<calls::Tensor>& in, int op);
// Returns the rows of `t` for each of `ranks` ranks. Horovod's rules: an empty list asks for equal shares; rows that no
// entry covers are not sent.
std::vector<int64_t> splits_of(const calls::Tensor& t, std::vector<int64_t> splits, size_t ranks);

}  // namespace hvd::calls
