// The texts that events name by numbers: names of tensors and phases, shapes, errors. Each text is stored once. Any
// thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/types/own_pages.h"

namespace hvd::observe {

class Texts {
 public:
  // Called with each new text, under the mutex.
  using Added = std::function<void(uint32_t id, std::string_view text)>;
  explicit Texts(Added added) : added_(std::move(added)) {}

  // The number of a text, from 1; 0 where kMost texts are known already.
  uint32_t id(std::string_view text) {
    std::lock_guard lock(mutex_);
    return intern(text).id;
  }
  // The number of a request's name, and in *what the number of the description of its signature: describe() is called
  // when the signature of this name is another one than the last time.
  template <typename Describe>
  uint32_t id(std::string_view name, std::string_view signature, uint32_t* what, Describe&& describe) {
    std::lock_guard lock(mutex_);
    Entry& entry = intern(name);
    // A hash takes the place of the bytes, which would be the larger part of the memory for a name.
    const size_t hash = Hash()(signature);
    if (entry.what == 0 || entry.signature != hash) {
      // intern() may move other entries, but an unordered_map keeps references valid.
      entry.signature = hash;
      entry.what = intern(describe()).id;
    }
    *what = entry.what;
    return entry.id;
  }
  // The number of the last text, which is told to `added` in any case: where kMost texts are known, it is kLast.
  uint32_t id_of_last(std::string_view text, const Added& added) {
    std::lock_guard lock(mutex_);
    const uint32_t known = intern(text).id;
    const uint32_t id = known ? known : kLast;
    added(id, text);
    return id;
  }
  static constexpr uint32_t kLast = ~uint32_t{0};
  // Appends the texts from number `all->size()` + 1 on.
  void copy_new(std::vector<std::string>* all) {
    std::lock_guard lock(mutex_);
    for (size_t i = all->size(); i < texts_.size(); ++i) all->emplace_back(*texts_[i]);
  }
  // Calls added() for all texts again.
  void tell_all() {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < texts_.size(); ++i) added_(static_cast<uint32_t>(i + 1), *texts_[i]);
  }

 private:
  // A program that gives each of its operations a name of its own must not fill the memory.
  static constexpr size_t kMost = 1u << 16;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  struct Entry {
    uint32_t id = 0;
    uint32_t what = 0;
    size_t signature = 0;  // its hash
  };

  Entry& intern(std::string_view text) {
    if (auto it = known_.find(text); it != known_.end()) return it->second;
    if (texts_.size() >= kMost) {
      overflow_ = {};
      return overflow_;
    }
    if (texts_.size() == texts_.capacity()) texts_.reserve(std::max<size_t>(texts_.size() * 2, 64));
    auto& [kept, entry] = *known_.emplace(text, Entry{}).first;
    texts_.push_back(&kept);
    entry.id = static_cast<uint32_t>(texts_.size());
    added_(entry.id, text);
    return entry;
  }

  std::mutex mutex_;
  types::OwnPages pages_;
  std::pmr::unordered_map<std::pmr::string, Entry, Hash, std::equal_to<>> known_{pages_.get()};
  std::pmr::vector<const std::pmr::string*> texts_{pages_.get()};
  Entry overflow_;
  Added added_;
};

}  // namespace hvd::observe
