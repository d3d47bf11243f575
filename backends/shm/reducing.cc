// The algorithms that reduce: allreduce, reduce, reducescatter. Always in rank order, each element by one rank only
// (or by all ranks from the same bytes), so that all ranks end with the same bits.
//
// A chunk of an allreduce is cut into one slice per rank. Stage 0 shows the slices that others reduce; stage 1 reduces
// this rank's slice from its own buffer and the others' slots, straight into its output and, for the others, into its
// slot; stage 2 copies the others' results out. Every user byte is read once and written once.
#include "copy.h"
#include "op.h"

namespace hvd::shm {
namespace {

// The slices of chunk k of a stream of `extent` bytes.
struct Slices {
  uint64_t begin, length, slice;
  Slices(const Room& room, const Op& op, uint64_t k) {
    begin = k * room.chunk_bytes;
    length = std::min(room.chunk_bytes, op.extent - begin);
    slice = ((length + room.size - 1) / room.size + 63) / 64 * 64;
  }
  uint64_t offset(uint64_t r) const { return std::min(r * slice, length); }
  uint64_t bytes(uint64_t r) const { return offset(r + 1) - offset(r); }
};

constexpr uint64_t kBlock = 8192;  // bytes that are reduced, then copied while they are in the first-level cache

// Reduces `bytes` bytes of the sources (one pointer per rank, which move on) into `to`, and into `copy` unless NULL.
void reduce_run(const Room& room, const Op& op, char* to, char* copy, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t n = copy == nullptr ? bytes : std::min(kBlock, bytes);
    op.reduce(to, room.sources, room.size, n / op.elem, op.scale);
    bytes -= n;
    if (copy == nullptr) continue;
    copy_bytes(copy, to, n);
    to += n;
    copy += n;
    for (uint32_t r = 0; r < room.size; ++r) room.sources[r] = static_cast<const char*>(room.sources[r]) + n;
  }
}

// Two ranks put a result over what they read in the peer's slot, and find the peer's results in their own: lines go
// over and back, instead of missing in two sets of lines.
bool over_peer(const Room& room, const Op& op) { return room.size == 2 && !op.packed && op.coll == HVD_ALLREDUCE; }

void allreduce_show(const Room& room, Op& op, uint64_t k) {
  const Slices s(room, op, k);
  char* slot = room.slot(room.rank, k);
  if (op.packed) {
    gather(&op.in[0].first, s.begin, s.length, slot);
    return;
  }
  for (uint32_t r = 0; r < room.size; ++r) {
    if (r != room.rank) gather(&op.in[0].first, s.begin + s.offset(r), s.bytes(r), slot + s.offset(r));
  }
}

void allreduce_reduce(const Room& room, Op& op, uint64_t k) {
  const Slices s(room, op, k);
  const uint64_t at = s.offset(room.rank), bytes = s.bytes(room.rank);
  if (bytes == 0) return;
  char* const result = room.slot(over_peer(room, op) ? 1 - room.rank : room.rank, k) + at;
  if (op.packed) {
    for (uint32_t r = 0; r < room.size; ++r) room.sources[r] = room.slot(r, k) + at;
    reduce_run(room, op, result, nullptr, bytes);
    return;
  }
  Cursor& in = op.in[0].second;
  Cursor& out = op.out[0].first;
  in.seek(s.begin + at);
  if (op.own_copy) out.seek(s.begin + at);
  for (uint64_t done = 0; done < bytes;) {
    const Piece own = in.take(bytes - done);
    for (uint32_t r = 0; r < room.size; ++r) room.sources[r] = room.slot(r, k) + at + done;
    room.sources[room.rank] = own.p;
    if (op.own_copy) {
      // Input and output have the same counts, hence the same runs.
      const bool shared = op.coll == HVD_ALLREDUCE;
      reduce_run(room, op, out.take(own.bytes).p, shared ? result + done : nullptr, own.bytes);
    } else {
      reduce_run(room, op, result + done, nullptr, own.bytes);
    }
    done += own.bytes;
  }
}

void allreduce_collect(const Room& room, Op& op, uint64_t k) {
  if (!op.own_copy) return;
  const Slices s(room, op, k);
  for (uint32_t r = 0; r < room.size; ++r) {
    if (r == room.rank && !op.packed) continue;
    const uint32_t where = over_peer(room, op) ? room.rank : r;
    scatter(&op.out[0].second, s.begin + s.offset(r), s.bytes(r), room.slot(where, k) + s.offset(r));
  }
}

void allreduce_put(const Room&, Op& op, char* to) { gather(&op.in[0].first, 0, op.show, to); }

void allreduce_get(const Room& room, Op& op) {
  if (!op.own_copy || op.extent == 0) return;
  for (uint32_t r = 0; r < room.size; ++r) room.sources[r] = room.shown(r, op.show);
  if (op.out[0].pieces.size() == 1) {
    reduce_run(room, op, op.out[0].pieces[0].p, nullptr, op.extent);
    return;
  }
  reduce_run(room, op, room.scratch, nullptr, op.extent);
  scatter(&op.out[0].first, 0, op.extent, room.scratch);
}

// Part r of chunk k, whose slices are the parts that each rank will receive.
uint64_t part_bytes(const Room& room, const Stream& s, uint64_t k) {
  const uint64_t slice = room.chunk_bytes / room.size, at = k * slice;
  return at >= s.bytes ? 0 : std::min(slice, s.bytes - at);
}

void reducescatter_show(const Room& room, Op& op, uint64_t k) {
  const uint64_t slice = room.chunk_bytes / room.size;
  for (uint32_t r = 0; r < room.size; ++r) {
    if (r == room.rank) continue;
    const uint64_t bytes = part_bytes(room, op.in[r], k);
    if (bytes > 0) gather(&op.in[r].first, k * slice, bytes, room.slot(room.rank, k) + r * slice);
  }
}

void reducescatter_reduce(const Room& room, Op& op, uint64_t k) {
  const uint64_t slice = room.chunk_bytes / room.size;
  const uint64_t bytes = part_bytes(room, op.in[room.rank], k);
  if (bytes == 0) return;
  Cursor& in = op.in[room.rank].second;
  Cursor& out = op.out[0].first;
  in.seek(k * slice);
  out.seek(k * slice);
  for (uint64_t done = 0; done < bytes;) {
    const Piece own = in.take(bytes - done);
    for (uint32_t r = 0; r < room.size; ++r) room.sources[r] = room.slot(r, k) + room.rank * slice + done;
    room.sources[room.rank] = own.p;
    reduce_run(room, op, out.take(own.bytes).p, nullptr, own.bytes);
    done += own.bytes;
  }
}

void reducescatter_put(const Room& room, Op& op, char* to) {
  for (uint32_t r = 0; r < room.size; ++r) {
    gather(&op.in[r].first, 0, op.in[r].bytes, to);
    to += op.in[r].bytes;
  }
}

void reducescatter_get(const Room& room, Op& op) {
  uint64_t at = 0;
  for (uint32_t r = 0; r < room.rank; ++r) at += op.in[r].bytes;
  const uint64_t bytes = op.in[room.rank].bytes;
  if (bytes == 0) return;
  for (uint32_t r = 0; r < room.size; ++r) room.sources[r] = room.shown(r, op.show) + at;
  reduce_run(room, op, room.scratch, nullptr, bytes);
  scatter(&op.out[0].first, 0, bytes, room.scratch);
}

}  // namespace

#define HVD_ALLREDUCE_STAGES {allreduce_show, allreduce_reduce, allreduce_collect}
const Algorithm kAllreduce = {2, false, allreduce_put, allreduce_get, HVD_ALLREDUCE_STAGES};
const Algorithm kReduce = {2, false, allreduce_put, allreduce_get, HVD_ALLREDUCE_STAGES};
#undef HVD_ALLREDUCE_STAGES
const Algorithm kReducescatter = {
    1, true, reducescatter_put, reducescatter_get, {reducescatter_show, reducescatter_reduce, nullptr}};

}  // namespace hvd::shm
