// See parts.h.
#include "engine/dataplane/parts.h"

#include <algorithm>
#include <numeric>

#include "engine/base/dtypes.h"

namespace hvd::dataplane {

namespace {
uint64_t from_table(const std::vector<uint64_t>& table, size_t i, int32_t r, int32_t size) {
  return table[i * static_cast<size_t>(size) + static_cast<size_t>(r)];
}
}  // namespace

uint64_t total_elements(const plugins::Collective& c) {
  return std::accumulate(c.counts.begin(), c.counts.end(), uint64_t{0});
}

uint64_t total_bytes(const plugins::Collective& c) { return total_elements(c) * base::dtype_bytes(c.dtype); }

plugins::Collective elements_of(const plugins::Collective& c, uint64_t at, uint64_t n) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  plugins::Collective part(c.settings());
  for (size_t i = 0; i < c.counts.size() && n > 0; ++i) {
    const uint64_t count = at < c.counts[i] ? std::min(c.counts[i] - at, n) : 0;
    if (count > 0) {
      part.in.push_back(part_or_null(c.in[i], at * width, count * width));
      part.out.push_back(part_or_null(c.out[i], at * width, count * width));
      part.counts.push_back(count);
    }
    at -= std::min(at, c.counts[i]);
    n -= count;
  }
  return part;
}

plugins::Collective single_buffer(const plugins::Collective& c, size_t i, size_t ranks) {
  const auto row = [&](const std::vector<uint64_t>& all) {
    if (all.empty()) return all;
    const auto from = all.begin() + static_cast<ptrdiff_t>(i * ranks);
    return std::vector<uint64_t>(from, from + static_cast<ptrdiff_t>(ranks));
  };
  plugins::Collective one(c.settings());
  one.in = {c.in[i]};
  one.out = {c.out[i]};
  one.counts = {c.counts[i]};
  one.in_counts = row(c.in_counts);
  one.out_counts = row(c.out_counts);
  return one;
}

uint64_t out_part(const plugins::Collective& c, size_t i, int32_t r, int32_t size) {
  if (!c.out_counts.empty()) return from_table(c.out_counts, i, r, size);
  return c.coll == HVD_ALLGATHER ? c.counts[i] : c.counts[i] / static_cast<uint64_t>(size);
}

uint64_t out_start(const plugins::Collective& c, size_t i, int32_t r, int32_t size) {
  uint64_t start = 0;
  for (int32_t before = 0; before < r; ++before) start += out_part(c, i, before, size);
  return start;
}

uint64_t in_part(const plugins::Collective& c, size_t i, int32_t r, int32_t size) {
  if (!c.in_counts.empty()) return from_table(c.in_counts, i, r, size);
  return c.counts[i] / static_cast<uint64_t>(size);
}

uint64_t in_elements(const plugins::Collective& c, size_t i, int32_t rank) {
  return (c.coll == HVD_BROADCAST && c.root != rank) || c.coll == HVD_RECV ? 0 : c.counts[i];
}

uint64_t out_elements(const plugins::Collective& c, size_t i, int32_t rank, int32_t size) {
  switch (c.coll) {
    case HVD_ALLREDUCE:
      return c.counts[i];
    case HVD_REDUCE:
      return c.root == rank ? c.counts[i] : 0;
    case HVD_BROADCAST:  // the root may have no output
      return c.out[i].base == nullptr ? 0 : c.counts[i];
    case HVD_REDUCESCATTER:
      return out_part(c, i, rank, size);
    case HVD_ALLGATHER:
    case HVD_ALLTOALL:
      return out_start(c, i, size, size);
    case HVD_RECV:
      return c.counts[i];
    default:
      return 0;
  }
}

}  // namespace hvd::dataplane
