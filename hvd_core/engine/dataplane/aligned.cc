// See aligned.h.
#include "engine/dataplane/aligned.h"

#include <algorithm>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/parts.h"

namespace hvd::dataplane {

bool misaligned(const hvd_buf& b, uint32_t alignment) {
  return (reinterpret_cast<uintptr_t>(b.base) + b.offset) % alignment != 0;
}

char* aligned_scratch(Schedule& schedule, uint64_t bytes, uint32_t alignment) {
  char* p = schedule.scratch(bytes + alignment);
  const auto at = reinterpret_cast<uintptr_t>(p);
  return p + ((at + alignment - 1) / alignment * alignment - at);
}

void write_aligned(Schedule& schedule, const plugins::Collective& c, uint32_t alignment, int32_t rank, int32_t size,
                   const std::function<void(const plugins::Collective&)>& write) {
  bool all_aligned = true;
  for (size_t i = 0; i < c.counts.size(); ++i)
    all_aligned = all_aligned && !misaligned(c.in[i], alignment) && !misaligned(c.out[i], alignment);
  if (all_aligned) return write(c);
  plugins::Collective moved = c;
  HostCopies before, after;
  const uint64_t width = base::dtype_bytes(c.dtype);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t in = in_elements(c, i, rank) * width, out = out_elements(c, i, rank, size) * width;
    const bool in_place = address(c.in[i]) == address(c.out[i]);
    if (!misaligned(c.in[i], alignment) && !misaligned(c.out[i], alignment)) continue;
    const uint64_t shared_bytes = in_place ? std::max(in, out) : 0;
    char* const shared = in_place ? aligned_scratch(schedule, shared_bytes, alignment) : nullptr;
    if (in_place || misaligned(c.in[i], alignment)) {
      char* const to = in_place ? shared : aligned_scratch(schedule, in, alignment);
      char* const from = address(c.in[i]);
      // In place, an allgather finds this rank's part where it will stand in the end.
      uint64_t skip = 0;
      if (in_place && c.coll == HVD_ALLGATHER)
        for (int32_t r = 0; r < rank; ++r) skip += out_part(c, i, r, size) * width;
      if (in > 0) before.add({to + skip, from + skip, in});
      moved.in[i] = {to, 0, in_place ? shared_bytes : in};
    }
    if (in_place || misaligned(c.out[i], alignment)) {
      char* const from = in_place ? shared : aligned_scratch(schedule, out, alignment);
      if (out > 0) after.add({address(c.out[i]), from, out});
      moved.out[i] = {from, 0, in_place ? shared_bytes : out};
    }
  }
  if (!before.empty()) schedule.compute([before = std::move(before)](Schedule&) { before.run(); });
  write(moved);
  if (!after.empty()) schedule.compute([after = std::move(after)](Schedule&) { after.run(); });
}

Relocated relocate(const plugins::Collective& c, int32_t rank, int32_t size,
                   const std::function<hvd_buf(uint64_t bytes)>& place) {
  Relocated r{c, {}, {}};
  const uint64_t width = base::dtype_bytes(c.dtype);
  const bool whole = c.coll == HVD_ALLREDUCE || c.coll == HVD_REDUCE || c.coll == HVD_BROADCAST;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t in = in_elements(c, i, rank) * width, out = out_elements(c, i, rank, size) * width;
    const bool in_place = same_place(c.in[i], c.out[i]);
    uint64_t skip = 0;
    if (whole && in_place) {
      r.c.in[i] = r.c.out[i] = place(std::max({in, out, c.counts[i] * width}));
    } else {
      // In place, this rank's input of an allgather lies at its place in the output.
      if (in_place && c.coll == HVD_ALLGATHER)
        for (int32_t k = 0; k < rank; ++k) skip += out_part(c, i, k, size) * width;
      r.c.in[i] = place(in);
      r.c.out[i] = c.out[i].base ? place(out) : hvd_buf{};  // the root of a broadcast may have no output
    }
    const bool has_result = in_place && c.coll == HVD_BROADCAST && c.root == rank;
    if (in) r.before.push_back({part_of(r.c.in[i], 0, in), part_of(c.in[i], skip, in), in});
    if (out && c.out[i].base && !has_result)
      r.after.push_back({part_of(c.out[i], 0, out), part_of(r.c.out[i], 0, out), out});
  }
  return r;
}

}  // namespace hvd::dataplane
