// The data of one operation on one rank, and the arithmetic of the expected results. See plan.h.
//
// Values are small whole numbers with a period of three, exact in every type and cheap to check.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "check.h"
#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "hvd/backend_abi.h"
#include "plan.h"

namespace hvd::native {
namespace {

using base::OpKind;

int64_t value(int rank, int64_t salt, uint64_t at) {
  return (rank + 1) * (1 + (salt + static_cast<int64_t>(at % 3)) % 3);
}

template <typename F>
void with_type(int32_t dtype, F&& f) {
  switch (dtype) {
    case HVD_FLOAT32:
      return f(float{});
    case HVD_FLOAT64:
      return f(double{});
    case HVD_INT32:
      return f(int32_t{});
    default:
      return f(int64_t{});
  }
}

void fill(void* data, int32_t dtype, uint64_t n, int rank, int64_t salt) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (uint64_t i = 0; i < n; ++i) static_cast<T*>(data)[i] = static_cast<T>(value(rank, salt, i));
  });
}

// `expected` has one value for each (from + i) % 3.
void compare(const void* data, int32_t dtype, uint64_t n, uint64_t from, const int64_t (&expected)[3],
             const std::string& what) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (uint64_t i = 0; i < n; ++i) {
      T found;
      std::memcpy(&found, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
      if (found == static_cast<T>(expected[(from + i) % 3])) continue;
      wrong(what + ": element " + std::to_string(i) + " of " + std::to_string(n) + " is " +
            std::to_string(static_cast<double>(found)) + ", expected " + std::to_string(expected[(from + i) % 3]));
    }
  });
}

bool has(const Members& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

int64_t share(int64_t rows, const Members& members, int rank) {
  const auto n = static_cast<int64_t>(members.size());
  const int64_t at = std::find(members.begin(), members.end(), rank) - members.begin();
  return rows / n + (at < rows % n ? 1 : 0);
}

}  // namespace

// What a rank brings to an allgather.
int64_t Buffers::rows(int rank, size_t tensor) const { return (rank + op_.salt + static_cast<int64_t>(tensor)) % 3; }

// What `from` sends to `to` in an alltoall.
int64_t Buffers::split(int from, int to, size_t tensor) const {
  return (from + 2 * to + op_.salt + static_cast<int64_t>(tensor)) % 3;
}

Buffers::Buffers(const Op& op, int rank, const Members& members) : op_(op), rank_(rank), members_(members) {
  for (size_t i = 0; i < op.counts.size(); ++i) {
    calls::Tensor t;
    t.dtype = op.dtype;
    t.shape = {op.counts[i]};
    if (op.kind == OpKind::Allgather) t.shape.insert(t.shape.begin(), rows(rank, i));
    // Fewer rows than members, so that some get none, or a few more.
    if (op.kind == OpKind::Reducescatter) t.shape.insert(t.shape.begin(), 1 + (op.counts[i] + op.salt) % 6);
    if (op.kind == OpKind::Alltoall) {
      int64_t total = 0;
      splits_.emplace_back();
      for (int32_t to : members) {
        splits_.back().push_back(split(rank, to, i));
        total += splits_.back().back();
      }
      t.shape.insert(t.shape.begin(), total);
    }
    // Exactly as large as needed: one byte beyond is found.
    memory_.emplace_back(t.bytes());
    t.data = memory_.back().data();
    fill(t.data, t.dtype, t.count(), rank, op.salt);
    in_.push_back(t);
    if (base::sizes_vary(op.kind)) continue;  // the engine allocates the results
    if (op.kind == OpKind::Reducescatter) t.shape[0] = share(t.shape[0], members, rank);
    if (!op.in_place || op.kind == OpKind::Reducescatter) {
      memory_.emplace_back(t.bytes(), 'x');
      t.data = memory_.back().data();
    }
    out_.push_back(std::move(t));
  }
}

agreement::SigRef Buffers::signature() const {
  agreement::SignatureFields f;
  f.kind = op_.kind;
  f.repeats = op_.name.has_value();
  if (op_.kind == OpKind::Allreduce || op_.kind == OpKind::Reducescatter) f.reduce_op = op_.reduce_op;
  if (op_.kind == OpKind::Broadcast) f.root = op_.root;
  for (const auto& t : in_) {
    f.tensors.push_back({t.dtype, t.shape});
    if (base::sizes_vary(op_.kind)) f.tensors.back().shape[0] = -1;
  }
  return std::make_shared<const agreement::Signature>(std::move(f));
}

void Buffers::check(const calls::Request& request, const Members& joined) const {
  const std::string what = "rank " + std::to_string(rank_) + ", " + base::op_name(op_.kind) + " " + *request.item.name;
  for (size_t i = 0; i < op_.counts.size(); ++i) {
    if (base::sizes_vary(op_.kind)) {
      check_gathered(request, i, joined, what);
    } else {
      check_reduced(i, joined, what);
    }
    if (op_.in_place && op_.kind != OpKind::Reducescatter && !base::sizes_vary(op_.kind)) continue;
    const int64_t mine[3] = {value(rank_, op_.salt, 0), value(rank_, op_.salt, 1), value(rank_, op_.salt, 2)};
    compare(in_[i].data, op_.dtype, in_[i].count(), 0, mine, what + ", input");
  }
}

void Buffers::check_gathered(const calls::Request& request, size_t i, const Members& joined,
                             const std::string& what) const {
  require(request.outputs.size() == op_.counts.size(), what + ": not all outputs are there");
  const bool to_all = op_.kind == OpKind::Alltoall;
  const auto& out = request.outputs[i];
  const auto* at = static_cast<const char*>(out.data.get());
  int64_t total = 0;
  for (size_t m = 0; m < members_.size(); ++m) {
    const int r = members_[m];
    int64_t n = has(joined, r) ? 0 : to_all ? split(r, rank_, i) : rows(r, i);
    uint64_t before = 0;  // what it sent to others first
    for (size_t k = 0; to_all && members_[k] != rank_; ++k) before += static_cast<uint64_t>(split(r, members_[k], i));
    const int64_t expected[3] = {value(r, op_.salt, 0), value(r, op_.salt, 1), value(r, op_.salt, 2)};
    const auto elements = static_cast<uint64_t>(n * op_.counts[i]);
    compare(at, op_.dtype, elements, before * static_cast<uint64_t>(op_.counts[i]), expected,
            what + ", rows of rank " + std::to_string(r));
    at += elements * base::dtype_bytes(op_.dtype);
    total += n;
    if (to_all) require(request.received_splits.at(i).at(m) == n, what + ": a received split is wrong");
  }
  require(out.shape == std::vector<int64_t>({total, op_.counts[i]}), what + ": the shape is wrong");
}

void Buffers::check_reduced(size_t i, const Members& joined, const std::string& what) const {
  int64_t expected[3];
  for (uint64_t k = 0; k < 3; ++k) {
    bool first = true;
    for (int32_t r : members_) {
      if (has(joined, r)) continue;
      const int64_t v = value(r, op_.salt, k);
      int64_t& e = expected[k];
      e = first ? v : op_.reduce_op == HVD_SUM ? e + v : op_.reduce_op == HVD_MIN ? std::min(e, v) : std::max(e, v);
      first = false;
    }
    if (op_.kind == OpKind::Broadcast) expected[k] = value(op_.root, op_.salt, k);
  }
  uint64_t from = 0;
  if (op_.kind == OpKind::Reducescatter)
    for (size_t m = 0; members_[m] != rank_; ++m)
      from += static_cast<uint64_t>(share(in_[i].shape[0], members_, members_[m]) * op_.counts[i]);
  compare(out_[i].data, op_.dtype, out_[i].count(), from, expected, what);
}

}  // namespace hvd::native
