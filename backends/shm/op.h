// One collective in progress: what plan.cc makes of hvd_coll_args and what the algorithms work on.
//
// A list of buffers is seen as one stream of bytes, so that chunks may be cut anywhere in it. Cursors walk a stream
// forward only; each stage of a pipeline has its own, and none ever goes back, which keeps thousands of small buffers
// cheap. Used by the thread that is inside a call on the communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hvd/backend_abi.h"
#include "kernels.h"
#include "segment.h"

namespace hvd::shm {

struct Piece {
  char* p;
  uint64_t bytes;
};

class Cursor {
 public:
  void reset(const std::vector<Piece>& pieces) {
    piece_ = pieces.data();
    start_ = offset_ = 0;
  }
  // To stream position `at`, which is not before the present one and not beyond the end.
  void seek(uint64_t at) {
    offset_ = at - start_;
    skip();
  }
  // The next run of contiguous bytes, at most `limit`; there must be some left.
  Piece take(uint64_t limit) {
    skip();
    const Piece run = {piece_->p + offset_, std::min(limit, piece_->bytes - offset_)};
    offset_ += run.bytes;
    return run;
  }

 private:
  void skip() {
    while (offset_ > 0 && offset_ >= piece_->bytes) {
      start_ += piece_->bytes;
      offset_ -= piece_->bytes;
      ++piece_;
    }
  }
  const Piece* piece_ = nullptr;
  uint64_t start_ = 0, offset_ = 0;  // stream position of the piece, and position within it
};

// Buffers as one stream, with a cursor for each of the two stages that may walk it. No piece is empty.
struct Stream {
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  Cursor first, second;

  void clear() {
    pieces.clear();
    bytes = 0;
  }
  void add(char* p, uint64_t n) {
    if (n == 0) return;
    pieces.push_back({p, n});
    bytes += n;
  }
  void rewind() {
    first.reset(pieces);
    second.reset(pieces);
  }
};

struct Op;
struct Room;

// How one collective is served. A small operation is one hop: everybody shows all it has (put), then reads (get).
// A larger one is a pipeline of chunks with up to three stages; stage s of chunk k runs in iteration k + s, and may
// read what all ranks have shown in stage s - 1 of that chunk.
struct Algorithm {
  uint64_t lag;  // number of stages - 1
  bool sliced;   // a chunk holds one slice per rank, and the extent is that of the longest slice
  void (*put)(const Room&, Op&, char* to);
  void (*get)(const Room&, Op&);
  void (*stage[3])(const Room&, Op&, uint64_t chunk);
};

struct Op {
  const Algorithm* algorithm = nullptr;
  int32_t coll = 0, dtype = 0, root = 0;
  uint32_t elem = 1;  // bytes per element
  Scale scale;
  ReduceFn reduce = nullptr;
  std::vector<Stream> in, out;  // one each, or one per rank, as the collective needs
  uint64_t extent = 0;          // bytes that decide the number of chunks
  uint64_t show = 0;            // bytes that each rank has to show, at most
  uint64_t hash = 0, words[5] = {};
  bool packed = false;    // many tiny buffers: reduce in the segment, then copy out
  bool own_copy = false;  // this rank's own part is wanted in its output too
  bool barrier = false;   // nothing to show
  bool exchange = false;  // ALLTOALL: the sizes are compared first
};

// Where an algorithm works: the segment as seen by one rank during one operation.
struct Room {
  const Segment* segment;
  uint32_t rank, size;
  uint64_t seq;          // of the operation, for the small areas
  uint64_t chunk_base;   // chunks that this communicator has used before
  uint64_t chunk_bytes;  // per rank and chunk; a multiple of 64 * size
  const void** sources;  // scratch: one pointer per rank
  char* scratch;         // private, small_bytes long

  char* slot(uint32_t r, uint64_t chunk) const { return segment->slot(r, chunk_base + chunk); }
  // What rank r shows in a small operation of `bytes` bytes.
  char* shown(uint32_t r, uint64_t bytes) const {
    if (bytes > kInline) return segment->small(r, seq);
    return reinterpret_cast<char*>(segment->ctl(r).hello[seq & 1].payload);
  }
};

// Copies `bytes` bytes at stream position `at` to contiguous memory, and back.
void gather(Cursor* from, uint64_t at, uint64_t bytes, char* to);
void scatter(Cursor* to, uint64_t at, uint64_t bytes, const char* from);

extern const Algorithm kAllreduce, kReduce, kReducescatter, kBroadcast, kAllgather, kAlltoall, kBarrier;

// Turns args into *op (whose memory is reused from call to call). Local: looks at no other rank.
hvd_rc plan(const hvd_coll_args& args, uint32_t rank, uint32_t size, Op* op, hvd_error* err);
// HVD_OK when the collective, dtype and reduction are served at all.
hvd_rc served(const hvd_coll_args& args, hvd_error* err);
// A planned operation of a communicator of one.
void run_alone(Op& op);
// "allreduce (sum) of 10 float32 in 1 buffer", from the words of an announcement.
void describe(const uint64_t words[5], char* text, uint64_t n);

}  // namespace hvd::shm
