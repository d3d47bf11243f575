// Drawing what ranks do. See plan.h; what must come out of it is in buffers.cc.
#include "plan.h"

#include <algorithm>

#include "engine/base/operations.h"
#include "hvd/backend_abi.h"

namespace hvd::native {
namespace {

using base::OpKind;

int64_t draw_count(Rng& rng) {
  switch (rng.below(12)) {
    case 0:
      return 0;
    case 1:
      return rng.between(3'000, 9'000);
    case 2:
      return rng.one_in(4) ? rng.between(30'000, 80'000) : rng.between(500, 2'000);
    default:
      return rng.between(1, 200);
  }
}

Op draw_op(Rng& rng, const Members& members) {
  static const std::vector<OpKind> kinds{OpKind::Allreduce, OpKind::Allreduce, OpKind::Allreduce,    OpKind::Allreduce,
                                         OpKind::Allreduce, OpKind::Allgather, OpKind::Allgather,    OpKind::Broadcast,
                                         OpKind::Barrier,   OpKind::Alltoall,  OpKind::Reducescatter};
  static const std::vector<int32_t> types{HVD_FLOAT32, HVD_FLOAT32, HVD_FLOAT32, HVD_FLOAT64, HVD_INT32, HVD_INT64};
  static const std::vector<int32_t> reductions{HVD_SUM, HVD_SUM, HVD_SUM, HVD_MIN, HVD_MAX};
  Op op;
  op.kind = rng.pick(kinds);
  op.dtype = rng.pick(types);
  op.reduce_op = rng.pick(reductions);
  op.root = rng.pick(members);
  op.in_place = rng.one_in(2);
  if (op.kind == OpKind::Barrier) return op;
  const bool in_rows = op.kind != OpKind::Allreduce && op.kind != OpKind::Broadcast;
  const uint64_t tensors = rng.one_in(4) ? 1 + rng.below(4) : 1;
  for (uint64_t i = 0; i < tensors; ++i) op.counts.push_back(in_rows ? rng.between(1, 300) : draw_count(rng));
  return op;
}

// A step like the usual one, or one that deviates from it.
Step draw_step(Rng& rng, const Step& usual, const Members& members, bool mistakes, bool unnamed) {
  Step step = usual;
  if (!rng.one_in(6)) return step;
  Op& odd = step.ops[rng.below(step.ops.size())];
  auto name = odd.name;
  switch (rng.below(5)) {
    case 0:
      odd = draw_op(rng, members);
      odd.name = std::move(name);
      break;
    case 1:
      if (mistakes) odd.poisoned_by = rng.pick(members);
      break;
    case 3:
      if (mistakes && members.size() > 1 && odd.kind == OpKind::Allreduce) odd.other_on = rng.pick(members);
      break;
    case 2:
      if (unnamed) odd.name.reset();
      break;
    default:
      step.ops.resize(1 + rng.below(step.ops.size()));
  }
  return step;
}

// A few steps come again and again, so that they become known batches; some deviate, which dissolves them.
Stream draw_stream(Rng& rng, size_t number, size_t set, const Members& members, int steps, bool mistakes,
                   bool unnamed) {
  Stream stream;
  stream.set = set;
  stream.depth = rng.one_in(3) ? 2 : 1;
  std::vector<Step> usual(1 + rng.below(3));
  for (size_t t = 0; t < usual.size(); ++t) {
    const uint64_t n = 1 + rng.below(7);
    for (uint64_t i = 0; i < n; ++i) {
      Op op = draw_op(rng, members);
      op.name = "s" + std::to_string(number) + "." + std::to_string(t) + "." + std::to_string(i);
      usual[t].ops.push_back(std::move(op));
    }
  }
  for (int k = 0; k < steps; ++k) {
    Step step = draw_step(rng, usual[rng.one_in(3) ? rng.below(usual.size()) : 0], members, mistakes, unnamed);
    step.at_once = step.ops.size() == 1 && rng.one_in(2) && step.ops[0].poisoned_by < 0;
    for (Op& op : step.ops) {
      op.salt = static_cast<int64_t>(rng.below(3));
      // Two steps at a time: the names of one are not those of the other.
      if (op.name && stream.depth > 1) *op.name += k % 2 ? ".odd" : ".even";
    }
    stream.steps.push_back(std::move(step));
  }
  return stream;
}

}  // namespace

Members draw_members(Rng& rng, int ranks) {
  Members members;
  while (members.empty())
    for (int32_t r = 0; r < ranks; ++r)
      if (rng.one_in(2)) members.push_back(r);
  return members;
}

Plan make_plan(Rng& rng, const PlanOptions& options) {
  Plan plan;
  plan.sets.emplace_back();
  for (int32_t r = 0; r < options.ranks; ++r) plan.sets[0].push_back(r);
  for (int i = 0; i < options.sets; ++i) {
    Members members = draw_members(rng, options.ranks);
    // Two sets of the same ranks are two sets, but no use.
    if (std::find(plan.sets.begin(), plan.sets.end(), members) == plan.sets.end()) plan.sets.push_back(members);
  }
  std::vector<bool> has_unnamed(plan.sets.size());
  for (int s = 0; s < options.streams; ++s) {
    const size_t set = rng.below(plan.sets.size());
    // Unnamed calls are told apart by their order, so only one thread of a rank may make them on a set.
    const bool unnamed = !has_unnamed[set];
    has_unnamed[set] = true;
    plan.streams.push_back(
        draw_stream(rng, static_cast<size_t>(s), set, plan.sets[set], options.steps, options.mistakes, unnamed));
  }
  return plan;
}

std::vector<Step> make_uneven(Rng& rng, int steps) {
  std::vector<Step> all(static_cast<size_t>(steps));
  for (size_t k = 0; k < all.size(); ++k) {
    Op op;
    op.kind = rng.one_in(3) ? OpKind::Allgather : rng.one_in(4) ? OpKind::Reducescatter : OpKind::Allreduce;
    op.dtype = HVD_FLOAT32;
    op.reduce_op = rng.pick(std::vector<int32_t>{HVD_SUM, HVD_MIN, HVD_MAX});
    op.counts = {rng.between(1, 500)};
    if (rng.one_in(2)) op.name = "uneven." + std::to_string(k);
    op.salt = static_cast<int64_t>(rng.below(3));
    all[k].ops.push_back(std::move(op));
  }
  return all;
}

}  // namespace hvd::native
