// Checks of what a caller asks for, before it becomes a request. All throw InvalidRequest, which is the caller's
// ValueError, and which is reported to the other ranks. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sstream>
#include <vector>

#include "engine/control/signature.h"
#include "engine/queue/process_sets.h"
#include "engine/queue/request.h"
#include "engine/types/operations.h"

namespace hvd::calls {

using queue::InvalidRequest;

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
// A scale factor. 0 is refused: to backends it means that there is none.
inline void check_factor(double factor, const char* name) {
  require(factor != 0, name, " must not be 0; multiply the result by 0 instead");
}
void same_layout(const std::vector<queue::Tensor>& in, const std::vector<queue::Tensor>& out);
// As many outputs as inputs, or none.
void same_device(const std::vector<queue::Tensor>& in, const std::vector<queue::Tensor>& out);
control::SignatureFields fields_of(types::OpKind kind, const std::vector<queue::Tensor>& in);
void check_floating(const std::vector<queue::Tensor>& in);
void check_reducible(const std::vector<queue::Tensor>& in, int op);
// Rows of `t` for each of `ranks` ranks. Horovod's rules: no entries is an equal split; rows that no entry covers are
// not sent.
std::vector<int64_t> splits_of(const queue::Tensor& t, std::vector<int64_t> splits, size_t ranks);

}  // namespace hvd::calls
