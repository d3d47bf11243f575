// Random access to lists of buffers; see extent.h.
#include "extent.h"

#include <algorithm>
#include <cstring>

namespace hvd::tcp {

void Extent::open(const BufferList& stream) {
  spans_ = stream.spans.data();
  count_ = stream.spans.size();
  bytes_ = stream.bytes;
  last_ = 0;
  starts_.clear();
  if (count_ <= 1) return;
  uint64_t at = 0;
  for (const Span& span : stream.spans) {
    starts_.push_back(at);
    at += span.bytes;
  }
}

void Extent::open(char* p, uint64_t bytes) {
  single_ = {p, bytes};
  spans_ = nullptr;
  count_ = 1;
  bytes_ = bytes;
  last_ = 0;
  starts_.clear();
}

size_t Extent::find(uint64_t at) const {
  if (count_ <= 1) return 0;
  for (size_t i = last_; i < std::min(last_ + 2, count_); ++i) {
    if (at >= starts_[i] && (i + 1 == count_ || at < starts_[i + 1])) return last_ = i;
  }
  return last_ = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) - 1;
}

Span Extent::run(uint64_t at, uint64_t limit) const {
  const size_t i = find(at);
  const Span& span = spans_ != nullptr ? spans_[i] : single_;
  const uint64_t offset = at - (starts_.empty() ? 0 : starts_[i]);
  return {span.p + offset, std::min(limit, span.bytes - offset)};
}

void Extent::gather(uint64_t at, uint64_t n, char* to) const {
  while (n > 0) {
    const Span part = run(at, n);
    std::memcpy(to, part.p, part.bytes);
    at += part.bytes;
    to += part.bytes;
    n -= part.bytes;
  }
}

void Extent::scatter(uint64_t at, uint64_t n, const char* from) const {
  while (n > 0) {
    const Span part = run(at, n);
    std::memcpy(part.p, from, part.bytes);
    at += part.bytes;
    from += part.bytes;
    n -= part.bytes;
  }
}

int Payload::fill(uint64_t done, iovec* v, int most, uint64_t* covered) const {
  int n = 0;
  uint64_t filled = 0;
  while (n < most && done + filled < bytes) {
    const Span part = extent->run(at + done + filled, bytes - done - filled);
    v[n++] = {part.p, part.bytes};
    filled += part.bytes;
  }
  *covered = filled;
  return n;
}

void copy_extent(const Extent& from, uint64_t from_at, const Extent& to, uint64_t to_at, uint64_t bytes) {
  while (bytes > 0) {
    const Span source = from.run(from_at, bytes);
    const Span place = to.run(to_at, source.bytes);
    if (source.p != place.p) std::memmove(place.p, source.p, place.bytes);
    from_at += place.bytes;
    to_at += place.bytes;
    bytes -= place.bytes;
  }
}

}  // namespace hvd::tcp
