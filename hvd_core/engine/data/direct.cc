// See direct.h.
#include "engine/data/direct.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/data/aligned.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

void DirectTransport::plan(Program& program, const plugin::Collective& c) {
  if (c.counts.size() > 1 && !(comm_.caps() & HVD_CAP_VECTORED)) {
    if (c.coll == HVD_ALLREDUCE || c.coll == HVD_REDUCE || c.coll == HVD_BROADCAST)
      plan_list(program, c);
    else
      plan_each(program, c);
    return;
  }
  emit(program, c);
}

// The small ones as one, then each of those for which the copy would cost more than the call.
void DirectTransport::plan_list(Program& program, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype), below = abilities_.ask(c).pack_below;
  plugin::Collective small;
  copy_settings(small, c);
  std::vector<size_t> large;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (below != 0 && c.counts[i] * width >= below) {
      large.push_back(i);
      continue;
    }
    small.in.push_back(c.in[i]);
    small.out.push_back(c.out[i]);
    small.counts.push_back(c.counts[i]);
  }
  if (small.counts.size() == 1)
    emit(program, small);
  else if (!small.counts.empty())
    plan_packed(program, small);
  for (size_t i : large) emit(program, single_buffer(c, i, static_cast<size_t>(size())));
}

void DirectTransport::plan_packed(Program& program, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const Ability& ability = abilities_.ask(c);
  uint64_t total = 0;
  for (uint64_t n : c.counts) total += n;
  const hvd_buf packed{aligned_scratch(program, total * width, ability.alignment), 0, total * width};
  if (c.coll != HVD_BROADCAST || c.root == rank()) {
    program.compute([packed, width, in = c.in, counts = c.counts](Program&) {
      char* at = address(packed);
      for (size_t i = 0; i < counts.size(); ++i) {
        if (counts[i]) std::memcpy(at, address(in[i]), counts[i] * width);
        at += counts[i] * width;
      }
    });
  }
  plugin::Collective one;
  copy_settings(one, c);
  one.in = one.out = {packed};
  one.counts = {total};
  emit(program, one);
  if (c.coll == HVD_REDUCE && c.root != rank()) return;
  program.compute([packed, width, out = c.out, counts = c.counts](Program&) {
    const char* at = address(packed);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] && out[i].base) std::memcpy(address(out[i]), at, counts[i] * width);
      at += counts[i] * width;
    }
  });
}

void DirectTransport::plan_each(Program& program, const plugin::Collective& c) {
  std::vector<plugin::Collective> members;
  for (size_t i = 0; i < c.counts.size(); ++i) members.push_back(single_buffer(c, i, static_cast<size_t>(size())));
  plan_group(program, std::move(members));
}

void DirectTransport::plan_group(Program& program, std::vector<plugin::Collective> members) {
  const bool mixed = comm_.caps() & HVD_CAP_GROUP_MIXED, same = comm_.caps() & HVD_CAP_GROUP_SAME;
  // What needs steps of its own around it cannot stand inside a group.
  const auto simple = [&](const plugin::Collective& c) { return abilities_.ask(c).plain(); };
  std::vector<plugin::Collective> run;
  const auto flush = [&] {
    if (run.size() == 1) program.collective(comm_) = std::move(run[0]);
    if (run.size() > 1) program.group(comm_, std::move(run));
    run.clear();
  };
  for (plugin::Collective& c : members) {
    const bool groups = (mixed || same) && simple(c);
    if (!run.empty() && (!groups || (!mixed && run[0].coll != c.coll))) flush();
    if (groups)
      run.push_back(std::move(c));
    else
      emit(program, c);
  }
  flush();
}

void DirectTransport::emit(Program& program, const plugin::Collective& c) {
  const Ability& ability = abilities_.ask(c);
  if (ability.plain()) {
    program.collective(comm_) = c;
  } else if (oversized(c, ability.max_count)) {
    for (size_t i = 0; i < c.counts.size(); ++i) split(program, c, i, ability);
  } else {
    emit_aligned(program, c, ability.alignment);
  }
}

void DirectTransport::emit_aligned(Program& program, const plugin::Collective& c, uint32_t alignment) {
  plan_aligned(program, c, alignment, rank(), size(),
               [&](const plugin::Collective& moved) { program.collective(comm_) = moved; });
}

bool DirectTransport::oversized(const plugin::Collective& c, uint64_t max_count) const {
  if (c.coll == HVD_ALLTOALL) return false;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    uint64_t n = c.counts[i];
    if (c.coll == HVD_ALLGATHER) n = out_elements(c, i, rank(), size());
    if (n > max_count) return true;
  }
  return false;
}

// Buffer i in as many calls as it takes.
void DirectTransport::split(Program& program, const plugin::Collective& c, size_t i, const Ability& ability) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto ranks = static_cast<uint64_t>(size());
  plugin::Collective one = single_buffer(c, i, static_cast<size_t>(size()));
  if (c.coll != HVD_ALLGATHER && c.coll != HVD_REDUCESCATTER) {
    for (uint64_t at = 0; at < c.counts[i]; at += ability.max_count) {
      const uint64_t n = std::min(ability.max_count, c.counts[i] - at);
      one.in[0] = part_of(c.in[i], at * width, n * width);
      if (c.out[i].base) one.out[0] = part_of(c.out[i], at * width, n * width);
      one.counts[0] = n;
      emit_aligned(program, one, ability.alignment);
    }
    return;
  }
  // A slice of every rank's part at a time.
  const bool gathers = c.coll == HVD_ALLGATHER;
  const uint64_t slice = std::max<uint64_t>(1, ability.max_count / ranks);
  std::vector<uint64_t> parts, starts;  // elements
  uint64_t total = 0, longest = 0;
  for (int32_t r = 0; r < size(); ++r) {
    parts.push_back(out_part(c, i, r, size()));
    starts.push_back(total);
    total += parts.back();
    longest = std::max(longest, parts.back());
  }
  char* const packed = program.scratch(slice * ranks * width);
  const auto me = static_cast<size_t>(rank());
  const bool in_place = address(c.in[i]) == address(c.out[i]);
  char* const whole = address(gathers ? c.out[i] : c.in[i]);
  char* mine = address(gathers ? c.in[i] : c.out[i]) + (gathers && in_place ? starts[me] * width : 0);
  // A result in place would overwrite what later rounds still have to send.
  if (!gathers && in_place) mine = program.scratch(parts[me] * width);
  one.counts[0] = 0;
  one.out_counts.assign(ranks, 0);
  for (uint64_t at = 0; at < longest; at += slice) {
    struct Move {
      char *far, *near;
      uint64_t bytes;
    };
    std::vector<Move> moves;
    uint64_t sum = 0;
    for (size_t r = 0; r < parts.size(); ++r) {
      const uint64_t n = at < parts[r] ? std::min(slice, parts[r] - at) : 0;
      one.out_counts[r] = n;
      if (n > 0) moves.push_back({whole + (starts[r] + at) * width, packed + sum * width, n * width});
      sum += n;
    }
    const hvd_buf all{packed, 0, sum * width};
    const hvd_buf own{mine, at * width, one.out_counts[me] * width};
    if (gathers) {
      one.in[0] = own;
      one.out[0] = all;
      one.counts[0] = one.out_counts[me];
      emit_aligned(program, one, ability.alignment);
      program.compute([moves](Program&) {
        for (const Move& m : moves) std::memcpy(m.far, m.near, m.bytes);
      });
    } else {
      program.compute([moves](Program&) {
        for (const Move& m : moves) std::memcpy(m.near, m.far, m.bytes);
      });
      one.in[0] = all;
      one.out[0] = own;
      one.counts[0] = sum;
      emit_aligned(program, one, ability.alignment);
    }
  }
  if (gathers || !in_place || parts[me] == 0) return;
  program.compute(
      [to = address(c.out[i]), mine, bytes = parts[me] * width](Program&) { std::memcpy(to, mine, bytes); });
}

}  // namespace hvd::data
