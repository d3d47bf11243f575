// The algorithms that only move bytes: broadcast, allgather, alltoall, barrier.
//
// Stage 0 shows a chunk in this rank's slot, stage 1 copies the others' chunks out.
#include "copy.h"
#include "op.h"

namespace hvd::shm {

void gather(Cursor* from, uint64_t at, uint64_t bytes, char* to) {
  if (bytes == 0) return;
  from->seek(at);
  while (bytes > 0) {
    const Piece run = from->take(bytes);
    copy_bytes(to, run.p, run.bytes);
    to += run.bytes;
    bytes -= run.bytes;
  }
}

void scatter(Cursor* to, uint64_t at, uint64_t bytes, const char* from) {
  if (bytes == 0) return;
  to->seek(at);
  while (bytes > 0) {
    const Piece run = to->take(bytes);
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

bool is_root(const Room& room, const Op& op) { return room.rank == static_cast<uint32_t>(op.root); }

void broadcast_show(const Room& room, Op& op, uint64_t k) {
  if (!is_root(room, op)) return;
  const uint64_t at = k * room.chunk_bytes, bytes = chunk_part(op.extent, k, room.chunk_bytes);
  char* slot = room.slot(room.rank, k);
  gather(&op.in[0].first, at, bytes, slot);
  if (op.own_copy) scatter(&op.out[0].first, at, bytes, slot);
}

void broadcast_take(const Room& room, Op& op, uint64_t k) {
  if (is_root(room, op)) return;
  const uint64_t at = k * room.chunk_bytes;
  scatter(&op.out[0].first, at, chunk_part(op.extent, k, room.chunk_bytes), room.slot(op.root, k));
}

void broadcast_put(const Room& room, Op& op, char* to) {
  if (is_root(room, op)) gather(&op.in[0].first, 0, op.extent, to);
}

void broadcast_get(const Room& room, Op& op) {
  if (is_root(room, op) && !op.own_copy) return;
  scatter(&op.out[0].first, 0, op.extent, room.shown(op.root, op.show));
}

void allgather_show(const Room& room, Op& op, uint64_t k) {
  const uint64_t at = k * room.chunk_bytes, bytes = chunk_part(op.in[0].bytes, k, room.chunk_bytes);
  char* slot = room.slot(room.rank, k);
  gather(&op.in[0].first, at, bytes, slot);
  if (op.own_copy) scatter(&op.out[room.rank].first, at, bytes, slot);
}

void allgather_take(const Room& room, Op& op, uint64_t k) {
  const uint64_t at = k * room.chunk_bytes;
  // Each rank begins with its right-hand neighbour, so that they do not all read the same slot at once.
  for (uint32_t step = 1; step < room.size; ++step) {
    const uint32_t r = (room.rank + step) % room.size;
    scatter(&op.out[r].first, at, chunk_part(op.out[r].bytes, k, room.chunk_bytes), room.slot(r, k));
  }
}

void allgather_put(const Room&, Op& op, char* to) { gather(&op.in[0].first, 0, op.in[0].bytes, to); }

void allgather_get(const Room& room, Op& op) {
  for (uint32_t r = 0; r < room.size; ++r) {
    if (r != room.rank || op.own_copy) scatter(&op.out[r].first, 0, op.out[r].bytes, room.shown(r, op.show));
  }
}

void alltoall_show(const Room& room, Op& op, uint64_t k) {
  const uint64_t slice = room.chunk_bytes / room.size;
  char* slot = room.slot(room.rank, k);
  for (uint32_t r = 0; r < room.size; ++r) {
    gather(&op.in[r].first, k * slice, chunk_part(op.in[r].bytes, k, slice), slot + r * slice);
  }
}

void alltoall_take(const Room& room, Op& op, uint64_t k) {
  const uint64_t slice = room.chunk_bytes / room.size;
  for (uint32_t step = 0; step < room.size; ++step) {
    const uint32_t r = (room.rank + step) % room.size;
    scatter(&op.out[r].first, k * slice, chunk_part(op.out[r].bytes, k, slice), room.slot(r, k) + room.rank * slice);
  }
}

void nothing_to_put(const Room&, Op&, char*) {}
void nothing_to_get(const Room&, Op&) {}

}  // namespace

const Algorithm kBroadcast = {1, false, broadcast_put, broadcast_get, {broadcast_show, broadcast_take, nullptr}};
const Algorithm kAllgather = {1, false, allgather_put, allgather_get, {allgather_show, allgather_take, nullptr}};
const Algorithm kAlltoall = {1, true, nothing_to_put, nothing_to_get, {alltoall_show, alltoall_take, nullptr}};
const Algorithm kBarrier = {0, false, nothing_to_put, nothing_to_get, {nullptr, nullptr, nullptr}};

}  // namespace hvd::shm
