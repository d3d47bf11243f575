// See checks.h.
#include "engine/calls/checks.h"

#include <algorithm>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"

namespace hvd::calls {

void same_layout(const std::vector<calls::Tensor>& in, const std::vector<calls::Tensor>& out) {
  require(in.size() == out.size(), "as many outputs as inputs are needed: ", in.size(), " inputs, ", out.size(),
          " outputs");
  for (size_t i = 0; i < in.size(); ++i)
    require(in[i].dtype == out[i].dtype && in[i].shape == out[i].shape,
            "an output must have the shape and type of its input");
  same_device(in, out);
}

void same_device(const std::vector<calls::Tensor>& in, const std::vector<calls::Tensor>& out) {
  for (size_t i = 0; i < out.size(); ++i)
    require(in[i].device_type == out[i].device_type && in[i].device_id == out[i].device_id,
            "an output must be on the device of its input");
}

void check_apart(const std::vector<calls::Tensor>& in, const std::vector<calls::Tensor>& out) {
  if (out.size() < 2) return;
  struct Place {
    const char *begin, *end;
    size_t tensor;
    bool written;
  };
  std::vector<Place> places;
  places.reserve(in.size() + out.size());
  const auto add = [&](const calls::Tensor& t, size_t tensor, bool written) {
    const char* const begin = static_cast<const char*>(t.data);
    if (const uint64_t bytes = t.bytes()) places.push_back({begin, begin + bytes, tensor, written});
  };
  for (size_t i = 0; i < out.size(); ++i) {
    add(out[i], i, true);
    if (in[i].data != out[i].data) add(in[i], i, false);
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  // Of the places so far: what ends last among those that are written, and among all.
  const Place *written = nullptr, *any = nullptr;
  for (const Place& p : places) {
    const Place* const before = p.written ? any : written;
    if (before && before->end > p.begin && before->tensor != p.tensor)
      require(false, "tensors ", std::min(before->tensor, p.tensor), " and ", std::max(before->tensor, p.tensor),
              " of a grouped call lie in the same memory, where one of the two results would be reduced again. Give "
              "every array once.");
    if (!any || p.end > any->end) any = &p;
    if (p.written && (!written || p.end > written->end)) written = &p;
  }
}

agreement::SignatureFields fields_of(base::OpKind kind, const std::vector<calls::Tensor>& in) {
  require(!in.empty(), base::op_name(kind), " needs at least one tensor");
  agreement::SignatureFields f;
  f.kind = kind;
  for (const auto& t : in) {
    require(t.device_type == in[0].device_type && t.device_id == in[0].device_id && t.staged_from == in[0].staged_from,
            "Tensors in list must be on same device.");
    f.tensors.push_back({t.dtype, t.shape});
  }
  f.device_type = in[0].staged_from.empty() ? in[0].device_type : std::string(agreement::kStaged) + in[0].staged_from;
  return f;
}

void check_floating(const std::vector<calls::Tensor>& in) {
  for (const auto& t : in)
    require(base::is_floating(t.dtype) && base::is_reducible(t.dtype),
            "Adasum works on floating-point tensors; tensor type ", base::dtype_name(t.dtype), " is not supported.");
}

std::vector<int64_t> splits_of(const calls::Tensor& t, std::vector<int64_t> splits, size_t ranks) {
  if (t.shape.empty()) return std::vector<int64_t>(ranks, 0);  // the coordinator refuses it, on all ranks alike
  const int64_t rows = t.shape[0];
  if (splits.empty()) {
    require(rows % static_cast<int64_t>(ranks) == 0,
            "splits not provided, but first dimension of tensor is not an even multiple of the number of workers. (",
            rows, " rows, ", ranks, " ranks)");
    return std::vector<int64_t>(ranks, rows / static_cast<int64_t>(ranks));
  }
  require(splits.size() == ranks, "Number of entries in splits does not equal number of workers. (", splits.size(),
          " entries, ", ranks, " ranks)");
  int64_t sum = 0;
  for (int64_t s : splits) {
    require(s >= 0 && s <= rows, "An entry of splits is negative or greater than the first dimension of tensor: ", s,
            " of ", rows, " rows.");
    sum += s;
  }
  require(sum <= rows, "Sum of splits entries is greater than the first dimension of tensor. (", sum, " of ", rows,
          " rows)");
  return splits;
}

void check_reducible(const std::vector<calls::Tensor>& in, int op) {
  require(base::is_reduce_op(op), "unknown reduce op ", op);
  for (const auto& t : in) {
    require(base::is_reducible(t.dtype), "Tensor type ", base::dtype_name(t.dtype), " is not supported.");
    require(base::is_reducible(t.dtype, op), base::reduce_op_name(op), " of ", base::dtype_name(t.dtype),
            " tensors is not defined; use Sum, Min or Max.");
  }
}

}  // namespace hvd::calls
