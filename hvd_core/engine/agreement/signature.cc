// Canonical bytes of a request's signature and the text of a disagreement. See signature.h.
#include "engine/agreement/signature.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>

#include "engine/agreement/wire.h"
#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/base/rank_list.h"

namespace hvd::agreement {

using base::dtype_name;
using base::has_reduce_op;
using base::op_label;
using base::op_name;
using base::OpKind;
using base::rank_list;
using base::reduce_op_name;
using base::sizes_vary;

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + (shape[i] < 0 ? "?" : std::to_string(shape[i]));
  return s + "]";
}

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", v);
  return text;
}

// One rank's request in a few words, for the list that follows the sentence.
std::string summary(const SignatureFields& f) {
  std::string s = op_name(f.kind);
  if (f.kind == OpKind::AddProcessSet)
    return s + " of ranks " + rank_list(f.ranks) + (f.backends.empty() ? "" : " over " + f.backends);
  if (f.kind == OpKind::RemoveProcessSet) return s + " number " + std::to_string(f.root);
  if (has_reduce_op(f.kind)) s += std::string(" ") + reduce_op_name(f.reduce_op);
  if (f.kind == OpKind::Broadcast || (f.kind == OpKind::Allreduce && f.root >= 0))
    s += " root " + std::to_string(f.root);
  if (f.kind == OpKind::Barrier) return s;
  if (f.kind == OpKind::Send) s += " from rank " + std::to_string(f.root);
  if (f.tensors.size() != 1) s += " of " + std::to_string(f.tensors.size()) + " tensors";
  for (size_t i = 0; i < f.tensors.size() && i < 4; ++i)
    s += std::string(i ? ", " : " ") + dtype_name(f.tensors[i].dtype) + shape_text(f.tensors[i].shape);
  if (f.tensors.size() > 4) s += ", ...";
  if (f.prescale != 1.0 || f.postscale != 1.0)
    s += " factors (" + number(f.prescale) + ", " + number(f.postscale) + ")";
  return s + " on " + f.device_type;
}

std::string shape_sentence(OpKind kind, const TensorSpec& a, const TensorSpec& b) {
  std::string head = std::string("Mismatched ") + op_label(kind) + " tensor shapes: One rank sent a tensor ";
  if (!sizes_vary(kind))
    return head + "of shape " + shape_text(a.shape) + ", but another rank sent a tensor of shape " +
           shape_text(b.shape) + ".";
  if (a.shape.size() != b.shape.size())
    return head + "of rank " + std::to_string(a.shape.size()) + ", but another rank sent a tensor of rank " +
           std::to_string(b.shape.size()) + ".";
  size_t d = 0;
  while (d < a.shape.size() && a.shape[d] == b.shape[d]) ++d;
  return head + "with dimension " + std::to_string(d) + " equal to " + std::to_string(a.shape[d]) +
         ", but another rank sent a tensor with dimension " + std::to_string(d) + " equal to " +
         std::to_string(b.shape[d]) + ".";
}

// The reason why one rank copies tensors of a device through host memory and another rank does not.
std::string staged_hint(const SignatureFields& a, const SignatureFields& b) {
  const std::string staged(kStaged);
  if (a.device_type != staged + b.device_type && b.device_type != staged + a.device_type) return "";
  return " A rank without a backend for a device copies its tensors through host memory (staged): install the backend "
         "on all ranks.";
}

// The first difference, in the order in which Horovod checks.
std::string sentence(const SignatureFields& a, const SignatureFields& b) {
  for (size_t i = 0; i < std::min(a.tensors.size(), b.tensors.size()); ++i)
    if (a.tensors[i].dtype != b.tensors[i].dtype)
      return std::string("Mismatched data types: One rank had type ") + dtype_name(a.tensors[i].dtype) +
             ", but another rank had type " + dtype_name(b.tensors[i].dtype) + ".";
  if (a.kind != b.kind)
    return std::string("Mismatched operations: One rank did an ") + op_label(a.kind) + ", but another rank did an " +
           op_label(b.kind) + ".";
  if (a.tensors.size() != b.tensors.size())
    return "Mismatched groups: One rank sent a group of " + std::to_string(a.tensors.size()) +
           " tensors, but another rank sent a group of " + std::to_string(b.tensors.size()) + ".";
  if (a.ranks != b.ranks)
    return "Mismatched process sets: One rank adds a set of ranks " + rank_list(a.ranks) +
           ", but another rank adds a set of ranks " + rank_list(b.ranks) + ".";
  if (a.backends != b.backends) {
    const auto chosen = [](const SignatureFields& f) { return f.backends.empty() ? "the job's backends" : f.backends; };
    return "Mismatched backends of a process set: One rank chose " + chosen(a) + ", but another rank chose " +
           chosen(b) + ".";
  }
  if (a.kind == OpKind::RemoveProcessSet) return "Mismatched process sets: The ranks remove different process sets.";
  for (size_t i = 0; i < a.tensors.size(); ++i)
    if (a.tensors[i].shape != b.tensors[i].shape) return shape_sentence(a.kind, a.tensors[i], b.tensors[i]);
  if (a.prescale != b.prescale || a.postscale != b.postscale)
    return "Mismatched prescale and/or postscale factors: One rank sent factors (" + number(a.prescale) + ", " +
           number(a.postscale) + "), but another rank sent factors (" + number(b.prescale) + ", " +
           number(b.postscale) + ").";
  if (has_reduce_op(a.kind) && a.reduce_op != b.reduce_op)
    return std::string("Mismatched reduction operation: One rank sent reduction op ") + reduce_op_name(a.reduce_op) +
           ", but another rank sent reduction op " + reduce_op_name(b.reduce_op) + ".";
  if (a.root != b.root)
    return std::string("Mismatched ") + op_label(a.kind) + " root ranks: One rank specified root rank " +
           std::to_string(a.root) + ", but another rank specified root rank " + std::to_string(b.root) + ".";
  if (a.device_type != b.device_type)
    return std::string("Mismatched ") + op_label(a.kind) + " device selection: One rank specified device " +
           a.device_type + ", but another rank specified device " + b.device_type + "." + staged_hint(a, b);
  return "Mismatched names: One rank named the operation, but another rank did not.";
}

// Whether a call can have made this tensor of an operation. The data plane computes with its type and shape.
void check_tensor(OpKind kind, const TensorSpec& t) {
  if (!base::is_dtype(t.dtype)) throw WireError("control message: an unknown element type, " + std::to_string(t.dtype));
  // The number of rows of an allgather or alltoall is -1 where the ranks may have different ones.
  const bool open = sizes_vary(kind) && !t.shape.empty() && t.shape[0] == -1;
  // An array of a window does not exist yet: that no memory holds it is found when it is to be made.
  const uint64_t most = kind == OpKind::CreateWindow ? INT64_MAX : base::kMostBytes;
  if (!base::product(std::span(t.shape).subspan(open), base::dtype_bytes(t.dtype), most))
    throw WireError("control message: no tensor has the shape " + shape_text(t.shape));
}

}  // namespace

Signature::Signature(SignatureFields fields) : fields_(std::move(fields)) {
  Writer w(bytes_);
  w.u8(static_cast<uint8_t>(fields_.kind));
  w.u8(fields_.repeats ? 1 : 0);
  w.svarint(fields_.reduce_op);
  w.svarint(fields_.root);
  w.f64(fields_.prescale);
  w.f64(fields_.postscale);
  w.bytes(fields_.device_type);
  w.varint(fields_.ranks.size());
  for (int32_t r : fields_.ranks) w.svarint(r);
  if (fields_.kind == OpKind::AddProcessSet) w.bytes(fields_.backends);
  // Two requests may share a batch if everything up to here is equal, and the dtype.
  fuse_key_ = bytes_;
  w.varint(fields_.tensors.size());
  bool one_dtype = !fields_.tensors.empty();
  for (const auto& t : fields_.tensors) {
    w.svarint(t.dtype);
    w.varint(t.shape.size());
    uint64_t count = 1;
    for (int64_t d : t.shape) {
      w.svarint(d);
      count *= d < 0 ? 1 : static_cast<uint64_t>(d);
    }
    payload_bytes_ += count * base::dtype_bytes(t.dtype);
    one_dtype = one_dtype && t.dtype == fields_.tensors[0].dtype;
  }
  agreed_bytes_ = bytes_.size();
  if (has_weights()) {
    w.varint(fields_.weights.size());
    for (const WeightDigest& d : fields_.weights) {
      w.bytes(d.parameter);
      w.varint(d.elements);
      w.varint(d.digest);
    }
    w.bytes(fields_.remedy);
  }
  if (one_dtype && fields_.kind != OpKind::CreateWindow)
    fuse_key_.push_back(static_cast<char>(fields_.tensors[0].dtype));
  else
    fuse_key_.clear();  // a group of mixed types is a batch of its own, and so are a barrier and a window
}

std::shared_ptr<const Signature> Signature::parse(std::string_view bytes) {
  Reader r(bytes);
  SignatureFields f;
  uint8_t kind = r.u8();
  if (kind >= base::kOpKinds || static_cast<OpKind>(kind) == OpKind::Join)
    throw WireError("control message: unknown operation");
  f.kind = static_cast<OpKind>(kind);
  f.repeats = r.u8() != 0;
  f.reduce_op = r.signed_number<int32_t>();
  f.root = r.signed_number<int32_t>();
  f.prescale = r.f64();
  f.postscale = r.f64();
  f.device_type = r.bytes();
  f.ranks = r.list([&] { return r.signed_number<int32_t>(); });
  if (f.kind == OpKind::AddProcessSet) f.backends = r.bytes();
  f.tensors = r.list([&] {
    TensorSpec t;
    t.dtype = r.signed_number<int32_t>();
    t.shape = r.list([&] { return r.svarint(); });
    check_tensor(f.kind, t);
    return t;
  });
  if (r.done()) return std::make_shared<const Signature>(std::move(f));
  f.weights = r.list([&] {
    WeightDigest d;
    d.parameter = r.bytes();
    d.elements = r.varint();
    d.digest = r.varint();
    return d;
  });
  f.remedy = r.bytes();
  return std::make_shared<const Signature>(std::move(f));
}

std::shared_ptr<const Signature> Signature::without_weights() const {
  SignatureFields f = fields_;
  f.weights.clear();
  f.remedy.clear();
  return std::make_shared<const Signature>(std::move(f));
}

std::string mismatch(const std::string& name, const std::vector<std::pair<int32_t, SigRef>>& said) {
  // Group the ranks by their signatures, in order of the lowest rank.
  std::vector<std::pair<SigRef, std::vector<int32_t>>> groups;
  auto sorted = said;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [rank, sig] : sorted) {
    auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first->agrees(*sig); });
    if (it == groups.end()) it = groups.insert(groups.end(), {sig, {}});
    it->second.push_back(rank);
  }
  std::string text = sentence(groups[0].first->fields(), groups[1].first->fields());
  text += " Tensor '" + name + "':";
  for (size_t i = 0; i < groups.size(); ++i)
    text += std::string(i ? "; " : " ") + (groups[i].second.size() > 1 ? "ranks " : "rank ") +
            rank_list(groups[i].second) + ": " + summary(groups[i].first->fields());
  return text + ".";
}

}  // namespace hvd::agreement
