// See relocated.h.
#include "engine/data/relocated.h"

#include <algorithm>

#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

Relocated relocate(const plugin::Collective& c, int32_t rank, int32_t size,
                   const std::function<hvd_buf(uint64_t bytes)>& place) {
  Relocated r{c, {}, {}};
  const uint64_t width = types::dtype_bytes(c.dtype);
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

}  // namespace hvd::data
