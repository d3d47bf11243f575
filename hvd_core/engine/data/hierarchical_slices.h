// Divides a list of buffers into one slice per lane. A value; any thread.
//
// HierarchicalTransport uses it: each lane carries a part of the elements. The list is seen as one run of elements, so
// that a list of small tensors is divided as evenly as one large tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hvd::data {

class Slices {
 public:
  // `counts`: elements of each buffer.
  Slices(const std::vector<uint64_t>& counts, size_t lanes) {
    offsets_.reserve(counts.size() + 1);
    offsets_.push_back(0);
    for (uint64_t n : counts) offsets_.push_back(offsets_.back() + n);
    const uint64_t each = total() / lanes, rest = total() % lanes;
    bounds_.reserve(lanes + 1);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const uint64_t bound = each * lane + rest * lane / lanes;
      // Large slices begin at a multiple of 64 elements: whole cache lines for most types.
      bounds_.push_back(each < 1024 ? bound : bound & ~uint64_t{63});
    }
    bounds_.push_back(total());
  }

  size_t lanes() const { return bounds_.size() - 1; }
  uint64_t total() const { return offsets_.back(); }
  // Elements before buffer i.
  uint64_t offset(size_t i) const { return offsets_[i]; }
  // The slice of a lane, in elements of the run. A member beyond the lanes has an empty slice at the end.
  uint64_t begin(size_t lane) const { return bounds_[std::min(lane, lanes())]; }
  uint64_t size(size_t lane) const { return begin(lane + 1) - begin(lane); }
  // The part of buffer i in the slice of a lane: its first element within the buffer, and its number of elements.
  uint64_t start(size_t i, size_t lane) const { return within(i, begin(lane)); }
  uint64_t count(size_t i, size_t lane) const { return within(i, begin(lane + 1)) - within(i, begin(lane)); }
  // The first element of that part within the slice.
  uint64_t position(size_t i, size_t lane) const { return offsets_[i] + start(i, lane) - begin(lane); }

 private:
  uint64_t within(size_t i, uint64_t at) const { return std::clamp(at, offsets_[i], offsets_[i + 1]) - offsets_[i]; }
  std::vector<uint64_t> offsets_, bounds_;
};

}  // namespace hvd::data
