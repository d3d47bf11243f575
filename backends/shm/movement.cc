// The algorithms that only move bytes: broadcast, allgather, alltoall, barrier.
//
// Stage 0 shows a chunk in this rank's slot, stage 1 copies the others' chunks out.
#include "algorithm.h"
#include "copy.h"

namespace hvd::shm {

void gather(Cursor* from, uint64_t at, uint64_t bytes, char* to) {
  if (bytes == 0) return;
  from->seek(at);
  while (bytes > 0) {
    const Span run = from->take(bytes);
    copy_bytes(to, run.p, run.bytes);
    to += run.bytes;
    bytes -= run.bytes;
  }
}

void scatter(Cursor* to, uint64_t at, uint64_t bytes, const char* from) {
  if (bytes == 0) return;
  to->seek(at);
  while (bytes > 0) {
    const Span run = to->take(bytes);
    copy_bytes(run.p, from, run.bytes);
    from += run.bytes;
    bytes -= run.bytes;
  }
}

namespace {

uint64_t chunk_part(uint64_t total, uint64_t k, uint64_t size) {
  const uint64_t at = k * size;
  return at >= total ? 0 : std::min(size, total - at);
}

bool is_root(const SegmentView& view, const Collective& op) { return view.rank == static_cast<uint32_t>(op.root); }

void broadcast_show(const SegmentView& view, Collective& op, uint64_t k) {
  if (!is_root(view, op)) return;
  const uint64_t at = k * view.chunk_bytes, bytes = chunk_part(op.extent, k, view.chunk_bytes);
  char* slot = view.slot(view.rank, k);
  gather(&op.in[0].first, at, bytes, slot);
  if (op.own_copy) scatter(&op.out[0].first, at, bytes, slot);
}

void broadcast_take(const SegmentView& view, Collective& op, uint64_t k) {
  if (is_root(view, op)) return;
  const uint64_t at = k * view.chunk_bytes;
  scatter(&op.out[0].first, at, chunk_part(op.extent, k, view.chunk_bytes), view.slot(op.root, k));
}

void broadcast_put(const SegmentView& view, Collective& op, char* to) {
  if (is_root(view, op)) gather(&op.in[0].first, 0, op.extent, to);
}

void broadcast_get(const SegmentView& view, Collective& op) {
  if (is_root(view, op) && !op.own_copy) return;
  scatter(&op.out[0].first, 0, op.extent, view.shown(op.root, op.show));
}

void allgather_show(const SegmentView& view, Collective& op, uint64_t k) {
  const uint64_t at = k * view.chunk_bytes, bytes = chunk_part(op.in[0].bytes, k, view.chunk_bytes);
  char* slot = view.slot(view.rank, k);
  gather(&op.in[0].first, at, bytes, slot);
  if (op.own_copy) scatter(&op.out[view.rank].first, at, bytes, slot);
}

void allgather_take(const SegmentView& view, Collective& op, uint64_t k) {
  const uint64_t at = k * view.chunk_bytes;
  // Each rank begins with its right-hand neighbour, so that they do not all read the same slot at once.
  for (uint32_t step = 1; step < view.size; ++step) {
    const uint32_t r = (view.rank + step) % view.size;
    scatter(&op.out[r].first, at, chunk_part(op.out[r].bytes, k, view.chunk_bytes), view.slot(r, k));
  }
}

void allgather_put(const SegmentView&, Collective& op, char* to) { gather(&op.in[0].first, 0, op.in[0].bytes, to); }

void allgather_get(const SegmentView& view, Collective& op) {
  for (uint32_t r = 0; r < view.size; ++r) {
    if (r != view.rank || op.own_copy) scatter(&op.out[r].first, 0, op.out[r].bytes, view.shown(r, op.show));
  }
}

void alltoall_show(const SegmentView& view, Collective& op, uint64_t k) {
  const uint64_t slice = view.chunk_bytes / view.size;
  char* slot = view.slot(view.rank, k);
  for (uint32_t r = 0; r < view.size; ++r) {
    gather(&op.in[r].first, k * slice, chunk_part(op.in[r].bytes, k, slice), slot + r * slice);
  }
}

void alltoall_take(const SegmentView& view, Collective& op, uint64_t k) {
  const uint64_t slice = view.chunk_bytes / view.size;
  for (uint32_t step = 0; step < view.size; ++step) {
    const uint32_t r = (view.rank + step) % view.size;
    scatter(&op.out[r].first, k * slice, chunk_part(op.out[r].bytes, k, slice), view.slot(r, k) + view.rank * slice);
  }
}

void nothing_to_put(const SegmentView&, Collective&, char*) {}
void nothing_to_get(const SegmentView&, Collective&) {}

}  // namespace

const Algorithm kBroadcast = {1, false, broadcast_put, broadcast_get, {broadcast_show, broadcast_take, nullptr}};
const Algorithm kAllgather = {1, false, allgather_put, allgather_get, {allgather_show, allgather_take, nullptr}};
const Algorithm kAlltoall = {1, true, nothing_to_put, nothing_to_get, {alltoall_show, alltoall_take, nullptr}};
const Algorithm kBarrier = {0, false, nothing_to_put, nothing_to_get, {nullptr, nullptr, nullptr}};

}  // namespace hvd::shm
