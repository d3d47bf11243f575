// A list of buffers with random access, and a part of one that a message carries.
//
// Used by the thread that is inside a call on the communicator.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "host_kernels/buffer_list.h"
#include "shared.h"

namespace hvd::tcp {

class Extent {
 public:
  // Refers to the list's spans, which must stay where they are.
  void open(const BufferList& stream);
  // One contiguous span.
  void open(char* p, uint64_t bytes);

  uint64_t bytes() const { return bytes_; }
  // The contiguous run at `at`, at most `limit` bytes of it. 0 < limit <= bytes() - at.
  Span run(uint64_t at, uint64_t limit) const;
  void gather(uint64_t at, uint64_t n, char* to) const;
  void scatter(uint64_t at, uint64_t n, const char* from) const;

 private:
  size_t find(uint64_t at) const;

  const Span* spans_ = nullptr;
  size_t count_ = 0;
  Span single_ = {nullptr, 0};
  std::vector<uint64_t> starts_;  // position of every span, if there are several
  uint64_t bytes_ = 0;
  mutable size_t last_ = 0;  // the span found last: the next one is usually the same, or the one behind it
};

// `bytes` bytes at `at` of an extent.
struct Payload {
  const Extent* extent = nullptr;
  uint64_t at = 0, bytes = 0;

  // Fills `v` with the memory after the first `done` bytes, at most `most` entries, which hold *covered bytes.
  int fill(uint64_t done, iovec* v, int most, uint64_t* covered) const;
};

// Memory that is kept from operation to operation; its contents are not.
class Scratch {
 public:
  char* get(uint64_t bytes) {
    if (bytes > size_) {
      memory_.reset();  // first, so that the old and the new need not both fit
      size_ = 0;
      memory_.reset(new char[bytes]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<char[]> memory_;
  uint64_t size_ = 0;
};

// Copies from one extent to another, span by span. Does nothing where both are the same memory.
void copy_extent(const Extent& from, uint64_t from_at, const Extent& to, uint64_t to_at, uint64_t bytes);

}  // namespace hvd::tcp
