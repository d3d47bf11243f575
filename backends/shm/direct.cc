// See direct.h.
#include "direct.h"

#include <algorithm>
#include <cstring>

#include "copy.h"

namespace hvd::shm {
namespace {

constexpr uint64_t kAtOnce = 64 << 10;  // bytes that are reduced before the caller looks whether the job has failed

}  // namespace

bool DirectReduction::offer(const Windows& windows, uint32_t rank, Collective& op, uint64_t most) {
  const std::vector<Span>&in = op.in[0].spans, &out = op.out[0].spans;
  if (windows.empty() || op.coll != HVD_ALLREDUCE || in.empty() || in.size() > most) return false;
  places_.clear();
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].p != out[i].p) return false;
    places_.push_back(windows.place_of(rank, in[i].p, in[i].bytes));
    if (places_.back() == Windows::kNowhere) return false;
  }
  return true;
}

void DirectReduction::show(uint64_t* to) const { std::memcpy(to, places_.data(), places_.size() * sizeof(uint64_t)); }

void DirectReduction::begin(const Windows& windows, uint32_t rank, uint32_t size, const Collective& op,
                            const std::vector<const uint64_t*>& shown) {
  const std::vector<Span>& spans = op.in[0].spans;
  rank_ = rank;
  size_ = size;
  sources_.assign(size, nullptr);
  spans_.resize(spans.size() * size);
  for (size_t i = 0; i < spans.size(); ++i) {
    for (uint32_t r = 0; r < size; ++r) {
      char* const p = r == rank ? spans[i].p : windows.at(r, shown[r][i], spans[i].bytes);
      if (p == nullptr) throw formatted_error(HVD_E_INVALID, 0, "rank %u named a window that does not exist", r);
      spans_[i * size + r] = p;
    }
  }
  // A slice is a multiple of 64 bytes, hence of an element.
  const uint64_t slice = ((op.extent + size - 1) / size + 63) / 64 * 64;
  const uint64_t from = std::min(rank * slice, op.extent);
  left_ = std::min(slice, op.extent - from);
  span_ = 0;
  offset_ = from;
  while (left_ > 0 && offset_ >= spans[span_].bytes) offset_ -= spans[span_++].bytes;
}

bool DirectReduction::advance(const Collective& op) {
  const std::vector<Span>& spans = op.in[0].spans;
  for (uint64_t done = 0; left_ > 0 && done < kAtOnce;) {
    const uint64_t n = std::min({kBlock, left_, spans[span_].bytes - offset_});
    char* const* const all = &spans_[span_ * size_];
    for (uint32_t r = 0; r < size_; ++r) sources_[r] = all[r] + offset_;
    char* const mine = all[rank_] + offset_;
    op.reduce(mine, sources_.data(), size_, n / op.elem, op.scale);
    for (uint32_t r = 0; r < size_; ++r) {
      if (r != rank_) std::memcpy(all[r] + offset_, mine, n);
    }
    done += n;
    left_ -= n;
    offset_ += n;
    if (offset_ == spans[span_].bytes) {
      ++span_;
      offset_ = 0;
    }
  }
  return left_ == 0;
}

}  // namespace hvd::shm
