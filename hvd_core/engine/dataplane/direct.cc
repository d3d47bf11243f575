// See direct.h.
#include "engine/dataplane/direct.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/dataplane/aligned.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/parts.h"

namespace hvd::dataplane {

void DirectLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (c.counts.size() > 1 && !(comm_.caps() & HVD_CAP_VECTORED)) {
    if (c.coll == HVD_ALLREDUCE || c.coll == HVD_REDUCE || c.coll == HVD_BROADCAST)
      write_list(schedule, c);
    else
      write_each(schedule, c);
    return;
  }
  emit(schedule, c);
}

// Packs the small buffers into one. For a large buffer, the copy would cost more than a call of its own.
void DirectLowering::write_list(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype), below = abilities_.ask(c).pack_below;
  plugins::Collective small(c.settings());
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
    emit(schedule, small);
  else if (!small.counts.empty())
    write_packed(schedule, small);
  for (size_t i : large) emit(schedule, single_buffer(c, i, static_cast<size_t>(size())));
}

void DirectLowering::write_packed(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const Ability& ability = abilities_.ask(c);
  uint64_t total = 0;
  for (uint64_t n : c.counts) total += n;
  const hvd_buf packed{aligned_scratch(schedule, total * width, ability.alignment), 0, total * width};
  if (c.coll != HVD_BROADCAST || c.root == rank()) {
    schedule.compute(
        [packed, width, in = c.in, counts = c.counts](Schedule&) {
          char* at = address(packed);
          for (size_t i = 0; i < counts.size(); ++i) {
            if (counts[i]) std::memcpy(at, address(in[i]), counts[i] * width);
            at += counts[i] * width;
          }
        },
        "MEMCPY_IN_FUSION_BUFFER");
  }
  plugins::Collective one(c.settings());
  one.in = one.out = {packed};
  one.counts = {total};
  emit(schedule, one);
  if (c.coll == HVD_REDUCE && c.root != rank()) return;
  // What the root of a broadcast has in place may be memory that it must not write to.
  std::vector<hvd_buf> out = c.out;
  if (c.coll == HVD_BROADCAST && c.root == rank())
    for (size_t i = 0; i < out.size(); ++i)
      if (same_place(c.in[i], out[i])) out[i] = {};
  schedule.compute(
      [packed, width, out = std::move(out), counts = c.counts](Schedule&) {
        const char* at = address(packed);
        for (size_t i = 0; i < counts.size(); ++i) {
          if (counts[i] && out[i].base) std::memcpy(address(out[i]), at, counts[i] * width);
          at += counts[i] * width;
        }
      },
      "MEMCPY_OUT_FUSION_BUFFER");
}

void DirectLowering::write_each(Schedule& schedule, const plugins::Collective& c) {
  std::vector<plugins::Collective> members;
  for (size_t i = 0; i < c.counts.size(); ++i) members.push_back(single_buffer(c, i, static_cast<size_t>(size())));
  write_group(schedule, std::move(members));
}

void DirectLowering::write_group(Schedule& schedule, std::vector<plugins::Collective> members) {
  const bool mixed = comm_.caps() & HVD_CAP_GROUP_MIXED, same = comm_.caps() & HVD_CAP_GROUP_SAME;
  // A collective that needs steps before or after it cannot be a member of a group.
  const auto simple = [&](const plugins::Collective& c) { return abilities_.ask(c).plain(); };
  std::vector<plugins::Collective> run;
  const auto flush = [&] {
    if (run.size() == 1) schedule.collective(comm_) = std::move(run[0]);
    if (run.size() > 1) schedule.group(comm_, std::move(run));
    run.clear();
  };
  for (plugins::Collective& c : members) {
    const bool groups = (mixed || same) && simple(c);
    if (!run.empty() && (!groups || (!mixed && run[0].coll != c.coll))) flush();
    if (groups)
      run.push_back(std::move(c));
    else
      emit(schedule, c);
  }
  flush();
}

void DirectLowering::emit(Schedule& schedule, const plugins::Collective& c) {
  const Ability& ability = abilities_.ask(c);
  if (ability.plain()) {
    schedule.collective(comm_) = c;
  } else if (oversized(c, ability.max_count)) {
    for (size_t i = 0; i < c.counts.size(); ++i) split(schedule, c, i, ability);
  } else {
    emit_aligned(schedule, c, ability.alignment);
  }
}

void DirectLowering::emit_aligned(Schedule& schedule, const plugins::Collective& c, uint32_t alignment) {
  write_aligned(schedule, c, alignment, rank(), size(),
                [&](const plugins::Collective& moved) { schedule.collective(comm_) = moved; });
}

bool DirectLowering::oversized(const plugins::Collective& c, uint64_t max_count) const {
  if (c.coll == HVD_ALLTOALL) return false;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    uint64_t n = c.counts[i];
    if (c.coll == HVD_ALLGATHER) n = out_elements(c, i, rank(), size());
    if (n > max_count) return true;
  }
  return false;
}

// Sends buffer i in several calls of at most max_count elements.
void DirectLowering::split(Schedule& schedule, const plugins::Collective& c, size_t i, const Ability& ability) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto ranks = static_cast<uint64_t>(size());
  plugins::Collective one = single_buffer(c, i, static_cast<size_t>(size()));
  if (c.coll != HVD_ALLGATHER && c.coll != HVD_REDUCESCATTER) {
    for (uint64_t at = 0; at < c.counts[i]; at += ability.max_count) {
      const uint64_t n = std::min(ability.max_count, c.counts[i] - at);
      one.in[0] = part_of(c.in[i], at * width, n * width);
      if (c.out[i].base) one.out[0] = part_of(c.out[i], at * width, n * width);
      one.counts[0] = n;
      emit_aligned(schedule, one, ability.alignment);
    }
    return;
  }
  // Each call has the next few elements of every rank's part.
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
  char* const packed = schedule.scratch(slice * ranks * width);
  const auto me = static_cast<size_t>(rank());
  const bool in_place = address(c.in[i]) == address(c.out[i]);
  char* const whole = address(gathers ? c.out[i] : c.in[i]);
  char* mine = address(gathers ? c.in[i] : c.out[i]) + (gathers && in_place ? starts[me] * width : 0);
  // In place, the results of early calls would overwrite the input of later ones.
  if (!gathers && in_place) mine = schedule.scratch(parts[me] * width);
  one.counts[0] = 0;
  one.out_counts.assign(ranks, 0);
  for (uint64_t at = 0; at < longest; at += slice) {
    HostCopies copies;
    uint64_t sum = 0;
    for (size_t r = 0; r < parts.size(); ++r) {
      const uint64_t n = at < parts[r] ? std::min(slice, parts[r] - at) : 0;
      one.out_counts[r] = n;
      char *const in_whole = whole + (starts[r] + at) * width, *const in_packed = packed + sum * width;
      if (n > 0) copies.add({gathers ? in_whole : in_packed, gathers ? in_packed : in_whole, n * width});
      sum += n;
    }
    const hvd_buf all{packed, 0, sum * width};
    const hvd_buf own{mine, at * width, one.out_counts[me] * width};
    if (gathers) {
      one.in[0] = own;
      one.out[0] = all;
      one.counts[0] = one.out_counts[me];
      emit_aligned(schedule, one, ability.alignment);
      schedule.compute([copies = std::move(copies)](Schedule&) { copies.run(); });
    } else {
      schedule.compute([copies = std::move(copies)](Schedule&) { copies.run(); });
      one.in[0] = all;
      one.out[0] = own;
      one.counts[0] = sum;
      emit_aligned(schedule, one, ability.alignment);
    }
  }
  if (gathers || !in_place || parts[me] == 0) return;
  schedule.compute(
      [to = address(c.out[i]), mine, bytes = parts[me] * width](Schedule&) { std::memcpy(to, mine, bytes); });
}

}  // namespace hvd::dataplane
