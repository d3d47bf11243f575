// The algorithms that reduce: allreduce, reduce, reducescatter. Always in rank order, each element by one rank only
// (or by all ranks from the same bytes), so that all ranks end with the same bits.
//
// A chunk of an allreduce is cut into one slice per rank. Stage 0 shows the slices that others reduce; stage 1 reduces
// this rank's slice from its own buffer and the others' slots, straight into its output and, for the others, into its
// slot; stage 2 copies the others' results out. Every user byte is read once and written once.
#include "algorithm.h"
#include "copy.h"

namespace hvd::shm {
namespace {

// The slices of chunk k of a stream of `extent` bytes.
struct Slices {
  uint64_t begin, length, slice;
  Slices(const SegmentView& view, const Collective& op, uint64_t k) {
    begin = k * view.chunk_bytes;
    length = std::min(view.chunk_bytes, op.extent - begin);
    slice = ((length + view.size - 1) / view.size + 63) / 64 * 64;
  }
  uint64_t offset(uint64_t r) const { return std::min(r * slice, length); }
  uint64_t bytes(uint64_t r) const { return offset(r + 1) - offset(r); }
};

// Reduces `bytes` bytes of the sources (one pointer per rank, which move on) into `to`, and into `copy` unless NULL.
void reduce_run(const SegmentView& view, const Collective& op, char* to, char* copy, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t n = copy == nullptr ? bytes : std::min(kBlock, bytes);
    op.reduce(to, view.sources, view.size, n / op.elem, op.scale);
    bytes -= n;
    if (copy == nullptr) continue;
    copy_bytes(copy, to, n);
    to += n;
    copy += n;
    for (uint32_t r = 0; r < view.size; ++r) view.sources[r] = static_cast<const char*>(view.sources[r]) + n;
  }
}

// Two ranks put a result over what they read in the peer's slot, and find the peer's results in their own: lines go
// over and back, instead of missing in two sets of lines.
bool over_peer(const SegmentView& view, const Collective& op) {
  return view.size == 2 && !op.packed && op.coll == HVD_ALLREDUCE;
}

void allreduce_show(const SegmentView& view, Collective& op, uint64_t k) {
  const Slices s(view, op, k);
  char* slot = view.slot(view.rank, k);
  if (op.packed) {
    gather(&op.in[0].first, s.begin, s.length, slot);
    return;
  }
  for (uint32_t r = 0; r < view.size; ++r) {
    if (r != view.rank) gather(&op.in[0].first, s.begin + s.offset(r), s.bytes(r), slot + s.offset(r));
  }
}

void allreduce_reduce(const SegmentView& view, Collective& op, uint64_t k) {
  const Slices s(view, op, k);
  const uint64_t at = s.offset(view.rank), bytes = s.bytes(view.rank);
  if (bytes == 0) return;
  char* const result = view.slot(over_peer(view, op) ? 1 - view.rank : view.rank, k) + at;
  if (op.packed) {
    for (uint32_t r = 0; r < view.size; ++r) view.sources[r] = view.slot(r, k) + at;
    reduce_run(view, op, result, nullptr, bytes);
    return;
  }
  Cursor& in = op.in[0].second;
  Cursor& out = op.out[0].first;
  in.seek(s.begin + at);
  if (op.own_copy) out.seek(s.begin + at);
  for (uint64_t done = 0; done < bytes;) {
    const Span own = in.take(bytes - done);
    for (uint32_t r = 0; r < view.size; ++r) view.sources[r] = view.slot(r, k) + at + done;
    view.sources[view.rank] = own.p;
    if (op.own_copy) {
      // Input and output have the same counts, hence the same runs.
      const bool shared = op.coll == HVD_ALLREDUCE;
      reduce_run(view, op, out.take(own.bytes).p, shared ? result + done : nullptr, own.bytes);
    } else {
      reduce_run(view, op, result + done, nullptr, own.bytes);
    }
    done += own.bytes;
  }
}

void allreduce_collect(const SegmentView& view, Collective& op, uint64_t k) {
  if (!op.own_copy) return;
  const Slices s(view, op, k);
  for (uint32_t r = 0; r < view.size; ++r) {
    if (r == view.rank && !op.packed) continue;
    const uint32_t where = over_peer(view, op) ? view.rank : r;
    scatter(&op.out[0].second, s.begin + s.offset(r), s.bytes(r), view.slot(where, k) + s.offset(r));
  }
}

void allreduce_put(const SegmentView&, Collective& op, char* to) { gather(&op.in[0].first, 0, op.show, to); }

void allreduce_get(const SegmentView& view, Collective& op) {
  if (!op.own_copy || op.extent == 0) return;
  for (uint32_t r = 0; r < view.size; ++r) view.sources[r] = view.shown(r, op.show);
  if (op.out[0].spans.size() == 1) {
    reduce_run(view, op, op.out[0].spans[0].p, nullptr, op.extent);
    return;
  }
  reduce_run(view, op, view.scratch, nullptr, op.extent);
  scatter(&op.out[0].first, 0, op.extent, view.scratch);
}

// Part r of chunk k, whose slices are the parts that each rank will receive.
uint64_t part_bytes(const SegmentView& view, const BufferList& s, uint64_t k) {
  const uint64_t slice = view.chunk_bytes / view.size, at = k * slice;
  return at >= s.bytes ? 0 : std::min(slice, s.bytes - at);
}

void reducescatter_show(const SegmentView& view, Collective& op, uint64_t k) {
  const uint64_t slice = view.chunk_bytes / view.size;
  for (uint32_t r = 0; r < view.size; ++r) {
    if (r == view.rank) continue;
    const uint64_t bytes = part_bytes(view, op.in[r], k);
    if (bytes > 0) gather(&op.in[r].first, k * slice, bytes, view.slot(view.rank, k) + r * slice);
  }
}

void reducescatter_reduce(const SegmentView& view, Collective& op, uint64_t k) {
  const uint64_t slice = view.chunk_bytes / view.size;
  const uint64_t bytes = part_bytes(view, op.in[view.rank], k);
  if (bytes == 0) return;
  Cursor& in = op.in[view.rank].second;
  Cursor& out = op.out[0].first;
  in.seek(k * slice);
  out.seek(k * slice);
  for (uint64_t done = 0; done < bytes;) {
    const Span own = in.take(bytes - done);
    for (uint32_t r = 0; r < view.size; ++r) view.sources[r] = view.slot(r, k) + view.rank * slice + done;
    view.sources[view.rank] = own.p;
    reduce_run(view, op, out.take(own.bytes).p, nullptr, own.bytes);
    done += own.bytes;
  }
}

void reducescatter_put(const SegmentView& view, Collective& op, char* to) {
  for (uint32_t r = 0; r < view.size; ++r) {
    gather(&op.in[r].first, 0, op.in[r].bytes, to);
    to += op.in[r].bytes;
  }
}

void reducescatter_get(const SegmentView& view, Collective& op) {
  uint64_t at = 0;
  for (uint32_t r = 0; r < view.rank; ++r) at += op.in[r].bytes;
  const uint64_t bytes = op.in[view.rank].bytes;
  if (bytes == 0) return;
  for (uint32_t r = 0; r < view.size; ++r) view.sources[r] = view.shown(r, op.show) + at;
  reduce_run(view, op, view.scratch, nullptr, bytes);
  scatter(&op.out[0].first, 0, bytes, view.scratch);
}

}  // namespace

#define HVD_ALLREDUCE_STAGES {allreduce_show, allreduce_reduce, allreduce_collect}
const Algorithm kAllreduce = {2, false, allreduce_put, allreduce_get, HVD_ALLREDUCE_STAGES};
const Algorithm kReduce = {2, false, allreduce_put, allreduce_get, HVD_ALLREDUCE_STAGES};
#undef HVD_ALLREDUCE_STAGES
const Algorithm kReducescatter = {
    1, true, reducescatter_put, reducescatter_get, {reducescatter_show, reducescatter_reduce, nullptr}};

}  // namespace hvd::shm
