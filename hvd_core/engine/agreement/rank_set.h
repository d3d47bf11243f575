// A set of ranks as bits. The first 64 are inline, so that jobs of one host never allocate. Operations on whole sets
// take time for each 64 ranks, so that a message about a thousand ranks costs little more than one about eight. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::agreement {

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
  // The highest rank; -1 in an empty set.
  int32_t last() const {
    for (size_t k = high_.size(); k-- > 0;)
      if (high_[k]) return static_cast<int32_t>(127 + 64 * k) - std::countl_zero(high_[k]);
    return 63 - std::countl_zero(low_);
  }
  void insert_all(const RankSet& other) {
    if (high_.size() < other.high_.size()) high_.resize(other.high_.size());
    add(low_, other.low_);
    for (size_t k = 0; k < other.high_.size(); ++k) add(high_[k], other.high_[k]);
  }
  void erase_all(const RankSet& other) {
    low_ &= ~other.low_;
    size_ = static_cast<uint32_t>(std::popcount(low_));
    for (size_t k = 0; k < high_.size(); ++k) {
      high_[k] &= ~other.word(k + 1);
      size_ += static_cast<uint32_t>(std::popcount(high_[k]));
    }
  }
  // Inserts the ranks from `first` to the one before `end`.
  void insert_range(int32_t first, int32_t end) {
    for (int32_t r = first; r < end;) {
      const auto i = static_cast<uint32_t>(r);
      const int32_t next = std::min(end, static_cast<int32_t>((i / 64 + 1) * 64));
      const uint64_t bits = (~uint64_t{0} >> (64 - (next - r))) << (i % 64);
      if (i >= 64 && high_.size() < i / 64) high_.resize(i / 64);
      add(i < 64 ? low_ : high_[i / 64 - 1], bits);
      r = next;
    }
  }
  bool intersects(const RankSet& other) const {
    for (size_t k = 0; k < words(); ++k)
      if (word(k) & other.word(k)) return true;
    return false;
  }
  // Whether each rank of this set is in the other set, or in one of two.
  bool within(const RankSet& a) const { return within(a, a); }
  bool within(const RankSet& a, const RankSet& b) const {
    for (size_t k = 0; k < words(); ++k)
      if (word(k) & ~(a.word(k) | b.word(k))) return false;
    return true;
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
  size_t words() const { return 1 + high_.size(); }
  uint64_t word(size_t k) const { return k == 0 ? low_ : k <= high_.size() ? high_[k - 1] : 0; }
  void add(uint64_t& word, uint64_t bits) {
    size_ += static_cast<uint32_t>(std::popcount(bits & ~word));
    word |= bits;
  }

  uint64_t low_ = 0;
  std::vector<uint64_t> high_;
  uint32_t size_ = 0;
};

}  // namespace hvd::agreement
