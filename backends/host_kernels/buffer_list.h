// A list of buffers seen as one sequence of bytes, so that chunks may begin and end anywhere in it.
//
// Cursors walk a list forward only. Each stage of a pipeline has its own cursor, and no cursor ever goes back, which
// keeps thousands of small buffers cheap. Used by the thread that is inside a call on the communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hvd::host_kernels {

// Contiguous bytes.
struct Span {
  char* p;
  uint64_t bytes;
};

class Cursor {
 public:
  void reset(const std::vector<Span>& spans) {
    span_ = spans.data();
    start_ = offset_ = 0;
  }
  // To position `at` of the list, which is not before the present one and not beyond the end.
  void seek(uint64_t at) {
    offset_ = at - start_;
    skip();
  }
  // The next contiguous bytes, at most `limit`; the cursor must not be at the end.
  Span take(uint64_t limit) {
    skip();
    const Span run = {span_->p + offset_, std::min(limit, span_->bytes - offset_)};
    offset_ += run.bytes;
    return run;
  }

 private:
  void skip() {
    while (offset_ > 0 && offset_ >= span_->bytes) {
      start_ += span_->bytes;
      offset_ -= span_->bytes;
      ++span_;
    }
  }
  const Span* span_ = nullptr;
  uint64_t start_ = 0, offset_ = 0;  // position of the span in the list, and position within the span
};

// The buffers, with a cursor for each of the two stages that may walk them. No span is empty.
struct BufferList {
  std::vector<Span> spans;
  uint64_t bytes = 0;
  Cursor first, second;

  void clear() {
    spans.clear();
    bytes = 0;
  }
  void add(char* p, uint64_t n) {
    if (n == 0) return;
    spans.push_back({p, n});
    bytes += n;
  }
  void rewind() {
    first.reset(spans);
    second.reset(spans);
  }
};

}  // namespace hvd::host_kernels
