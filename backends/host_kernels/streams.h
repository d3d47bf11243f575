// A list of buffers seen as one stream of bytes, so that chunks may be cut anywhere in it.
//
// Cursors walk a stream forward only; each stage of a pipeline has its own, and none ever goes back, which keeps
// thousands of small buffers cheap. Used by the thread that is inside a call on the communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hvd::host_kernels {

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

}  // namespace hvd::host_kernels
