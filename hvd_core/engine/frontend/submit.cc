// See submit.h.
#include "engine/frontend/submit.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "engine/base/operations.h"
#include "engine/base/threads.h"
#include "engine/calls/checks.h"

namespace hvd::frontend {

using agreement::SignatureFields;
using base::OpKind;

namespace {

SignatureFields reduction(OpKind kind, const Call& c) {
  auto f = calls::fields_of(kind, c.in);
  calls::check_factor(c.prescale, "prescale_factor");
  calls::check_factor(c.postscale, "postscale_factor");
  f.reduce_op = kind == OpKind::Adasum ? HVD_SUM : c.reduce_op;
  f.prescale = c.prescale;
  f.postscale = c.postscale;
  return f;
}

SignatureFields without_sizes(const Call& c) {
  auto f = calls::fields_of(c.kind, c.in);
  for (auto& t : f.tensors)
    if (!t.shape.empty()) t.shape[0] = -1;
  return f;
}

// The results go to the caller's tensors. Throws InvalidRequest unless they have `rows` rows, and fit otherwise.
void check_results(const Call& c, size_t i, int64_t rows) {
  calls::require(!c.in[i].shape.empty(), base::op_name(c.kind),
                 " with given results needs tensors of a dimension at least");
  auto shape = c.in[i].shape;
  shape[0] = rows;
  calls::require(c.in[i].dtype == c.out[i].dtype && c.out[i].shape == shape, "a result of ", base::op_name(c.kind),
                 " has another type or shape than the operation makes");
}

SignatureFields allgather(Engine& engine, const Call& c) {
  if (c.out.empty()) return without_sizes(c);
  const auto set = engine.process_sets().find(c.process_set, "allgather");
  calls::require(c.in.size() == c.out.size(), "as many outputs as inputs are needed: ", c.in.size(), " inputs, ",
                 c.out.size(), " outputs");
  auto f = calls::fields_of(c.kind, c.in);
  for (size_t i = 0; i < c.in.size(); ++i)
    check_results(c, i, c.in[i].shape.empty() ? 0 : c.in[i].shape[0] * static_cast<int64_t>(set->ranks.size()));
  calls::same_device(c.in, c.out);
  f.reduce_op = base::kAgreed;
  return f;
}

SignatureFields allreduce(Engine& engine, const Call& c) {
  calls::same_layout(c.in, c.out);
  calls::check_apart(c.in, c.out);
  if (c.to >= 0)
    calls::require(engine.process_sets().find(c.process_set, "reduce")->includes(c.to),
                   "reduce received invalid root rank ", c.to, " for provided process set");
  if (c.reduce_op == base::kAdasum) {
    calls::check_floating(c.in);
    calls::require(c.to < 0, "Adasum gives its result to all ranks");
    return reduction(OpKind::Adasum, c);
  }
  calls::check_reducible(c.in, c.reduce_op);
  auto f = reduction(c.kind, c);
  f.root = c.to;
  return f;
}

SignatureFields broadcast(Engine& engine, const Call& c) {
  calls::same_layout(c.in, c.out);
  const auto set = engine.process_sets().find(c.process_set, "broadcast");
  calls::require(std::find(set->ranks.begin(), set->ranks.end(), c.root) != set->ranks.end(),
                 "broadcast received invalid root rank ", c.root, " for provided process set");
  auto f = calls::fields_of(c.kind, c.in);
  f.root = c.root;
  return f;
}

SignatureFields alltoall(Engine& engine, Call& c) {
  const auto set = engine.process_sets().find(c.process_set, "alltoall");
  calls::require(c.splits.empty() || c.splits.size() == c.in.size(), "alltoall needs splits for each tensor, or none");
  c.splits.resize(c.in.size());
  for (size_t i = 0; i < c.in.size(); ++i)
    c.splits[i] = calls::splits_of(c.in[i], std::move(c.splits[i]), set->ranks.size());
  if (c.out.empty()) return without_sizes(c);
  const size_t ranks = set->ranks.size();
  calls::require(
      c.in.size() == c.out.size() && c.received.size() == c.in.size() * ranks,
      "an alltoall with given results takes as many outputs as inputs, and for each of them the rows from each rank");
  calls::require(std::all_of(c.received.begin(), c.received.end(), [](int64_t n) { return n >= 0; }),
                 "an alltoall cannot receive a negative number of rows");
  for (size_t i = 0; i < c.in.size(); ++i) {
    const int64_t* rows = c.received.data() + i * ranks;
    check_results(c, i, std::accumulate(rows, rows + ranks, int64_t{0}));
  }
  calls::same_device(c.in, c.out);
  auto f = without_sizes(c);
  f.reduce_op = c.unit < 0 ? base::kCompared : base::kAgreed;
  if (c.unit >= 0)
    for (auto& t : f.tensors) t.shape[0] = c.unit;
  f.root = c.root;
  return f;
}

SignatureFields send(Engine& engine, const Call& c) {
  calls::same_layout(c.in, c.out);
  const auto set = engine.process_sets().find(c.process_set, "send");
  calls::require(c.root != c.to, "send: rank ", c.root, " cannot send to itself");
  for (int32_t rank : {c.root, c.to})
    calls::require(set->includes(rank), "send: rank ", rank, " is not a member of the provided process set");
  calls::require(engine.config().rank == c.root || engine.config().rank == c.to, "send: rank ", engine.config().rank,
                 " neither sends nor receives");
  auto f = calls::fields_of(c.kind, c.in);
  f.root = c.root;
  return f;
}

SignatureFields reducescatter(Engine& engine, const Call& c) {
  calls::check_reducible(c.in, c.reduce_op);
  calls::require(c.out.empty() || c.in.size() == c.out.size(), "as many outputs as inputs are needed: ", c.in.size(),
                 " inputs, ", c.out.size(), " outputs");
  for (size_t i = 0; i < c.in.size(); ++i) {
    calls::require(!c.in[i].shape.empty(), "Reducescatter does not support scalar inputs");
    if (c.out.empty()) continue;
    auto shape = c.in[i].shape;
    shape[0] = scattered_rows(engine, shape[0], c.process_set);
    calls::require(c.in[i].dtype == c.out[i].dtype && c.out[i].shape == shape,
                   "the output of a reducescatter must have its input's type and this rank's share of its rows");
  }
  calls::same_device(c.in, c.out);
  calls::check_apart(c.in, c.out);
  return reduction(c.kind, c);
}

SignatureFields fields_for(Engine& engine, Call& c) {
  switch (c.kind) {
    case OpKind::Allreduce:
      return allreduce(engine, c);
    case OpKind::Allgather:
      return allgather(engine, c);
    case OpKind::Broadcast:
      return broadcast(engine, c);
    case OpKind::Alltoall:
      return alltoall(engine, c);
    case OpKind::Reducescatter:
      return reducescatter(engine, c);
    case OpKind::CreateWindow:
      return calls::fields_of(c.kind, c.in);
    case OpKind::Send:
      return send(engine, c);
    default: {
      SignatureFields f;
      f.kind = c.kind;
      return f;
    }
  }
}

}  // namespace

void refuse(Engine& engine, const Call& call, const std::string& why) {
  if (call.kind == OpKind::Send)
    engine.poison_message(call.process_set, call.root, call.to, call.name, why);
  else
    engine.poison(call.process_set, call.kind, call.name, why);
}

namespace {

agreement::SigRef signature_of(Frontend& frontend, Call& call) {
  Engine& engine = frontend.engine();
  if (auto known = frontend.known_signatures().find(call)) {
    calls::same_layout(call.in, call.out);
    calls::check_apart(call.in, call.out);
    return known;
  }
  SignatureFields fields = fields_for(engine, call);
  if (!call.in.empty() && !call.in[0].staged_from.empty()) engine.note_copied(fields, call.in);
  if (!call.in.empty() && !call.in[0].on_host()) call.ready = engine.ready_marks(call.in, call.out);
  // Names that do not come again are not remembered by the control plane.
  if (!call.name || call.once || fields.kind == OpKind::Send) fields.repeats = false;
  auto signature = std::make_shared<const agreement::Signature>(std::move(fields));
  frontend.known_signatures().remember(call, signature);
  return signature;
}

}  // namespace

calls::RequestRef submit(Frontend& frontend, Call&& call) {
  agreement::SigRef signature;
  try {
    signature = signature_of(frontend, call);
  } catch (const std::exception& e) {
    refuse(frontend.engine(), call, e.what());
    throw;
  }
  return frontend.engine().submit(std::move(signature), std::move(call));
}

int64_t scattered_rows(Engine& engine, int64_t rows, int32_t process_set) {
  const auto set = engine.process_sets().find(process_set, "reducescatter");
  calls::require(set->includes_me(), "reducescatter: Rank ", engine.config().rank,
                 " is not a member of the provided process set.");
  return base::scattered_rows(rows, set->my_rank, static_cast<int32_t>(set->ranks.size()));
}

plugins::MarkRef copy_output(Engine& engine, calls::Request& request, size_t index, const calls::Tensor& to) {
  calls::require(request.ok() && index < request.outputs.size(), "this operation has no such output");
  const calls::Output& o = request.outputs[index];
  calls::require(to.dtype == o.dtype && to.shape == o.shape && to.device_type == o.device_type,
                 "the copy of an output needs a tensor with the shape, type and device of the output");
  const uint64_t bytes = to.bytes();
  if (!o.device_memory) {
    calls::require(o.memory() != nullptr, "this output was taken already");
    if (bytes) std::memcpy(to.data, o.memory(), bytes);
    return nullptr;
  }
  if (bytes == 0) return nullptr;
  const auto device = engine.device_of(to);
  const hvd_buf target{to.data, 0, bytes};
  if (to.has_stream && engine.order_after(request, to.stream)) {
    const hvd_stream stream = device->wrap(to.stream);
    device->copy(stream, {{target, o.device_memory->buf, bytes}});
    o.device_memory->used_by(stream);
    return nullptr;
  }
  // The engine's own stream is behind the operation already.
  device->copy(device->stream(), {{target, o.device_memory->buf, bytes}});
  return device->mark(device->stream());
}

}  // namespace hvd::frontend
