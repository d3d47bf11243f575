// A set of ranks as bits. The first 64 are inline, so that jobs of one host never allocate. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::control {

class RankSet {
 public:
  bool contains(int32_t r) const {
    auto i = static_cast<uint32_t>(r);
    if (i < 64) return low_ >> i & 1;
    i -= 64;
    return i / 64 < high_.size() && (high_[i / 64] >> (i % 64) & 1);
  }
  // Returns whether the rank is new in the set.
  bool insert(int32_t r) {
    if (contains(r)) return false;
    auto i = static_cast<uint32_t>(r);
    if (i < 64) {
      low_ |= uint64_t{1} << i;
    } else {
      i -= 64;
      if (high_.size() <= i / 64) high_.resize(i / 64 + 1);
      high_[i / 64] |= uint64_t{1} << (i % 64);
    }
    ++size_;
    return true;
  }
  void clear() {
    low_ = 0;
    high_.clear();
    size_ = 0;
  }
  // The lowest rank; -1 in an empty set.
  int32_t first() const {
    if (low_) return std::countr_zero(low_);
    for (size_t k = 0; k < high_.size(); ++k)
      if (high_[k]) return static_cast<int32_t>(64 + 64 * k) + std::countr_zero(high_[k]);
    return -1;
  }
  void insert_all(const RankSet& other) {
    other.for_each([this](int32_t r) { insert(r); });
  }
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  template <typename F>
  void for_each(F&& f) const {
    for (uint64_t w = low_; w; w &= w - 1) f(std::countr_zero(w));
    for (size_t k = 0; k < high_.size(); ++k)
      for (uint64_t w = high_[k]; w; w &= w - 1) f(static_cast<int32_t>(64 + 64 * k) + std::countr_zero(w));
  }

 private:
  uint64_t low_ = 0;
  std::vector<uint64_t> high_;
  uint32_t size_ = 0;
};

}  // namespace hvd::control
