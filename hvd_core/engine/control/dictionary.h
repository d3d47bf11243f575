// Small ids for strings that are sent repeatedly: tensor names and signatures.
//
// Each direction of a link has its own dictionary. The sender alone decides what goes into which slot and says so in
// the message, so that the two ends cannot disagree and need not negotiate. The protocol always means whole names and
// signatures; this codec makes them short. HOROVOD_CACHE_CAPACITY is the number of slots; 0 turns it off.
// Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/control/wire.h"

namespace hvd::control {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};

template <typename V>
using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

// On the wire: 0 + text (not kept) | 1 + slot + text (kept in slot) | slot + 2.
class DictionaryEncoder {
 public:
  explicit DictionaryEncoder(uint32_t capacity) : capacity_(capacity) {}

  void put(Writer& w, std::string_view text, bool keep) {
    if (capacity_ == 0 || !keep) {
      w.varint(0);
      w.bytes(text);
      return;
    }
    // A signature is often that of the message before.
    if (last_ < texts_.size() && texts_[last_] == text) return put_slot(w, last_);
    if (auto it = slots_.find(text); it != slots_.end()) return put_slot(w, it->second);
    uint32_t slot = claim();
    slots_.emplace(std::string(text), slot);
    texts_[slot] = text;
    w.varint(1);
    w.varint(slot);
    w.bytes(text);
  }

 private:
  void put_slot(Writer& w, uint32_t slot) {
    last_ = slot;
    used_[slot] = true;
    w.varint(slot + uint64_t{2});
  }
  // A free slot, or the first slot that was not used since the hand last passed it (the clock algorithm).
  uint32_t claim() {
    if (texts_.size() < capacity_) {
      texts_.emplace_back();
      used_.push_back(true);
      return static_cast<uint32_t>(texts_.size() - 1);
    }
    while (used_[hand_]) {
      used_[hand_] = false;
      hand_ = (hand_ + 1) % capacity_;
    }
    uint32_t slot = hand_;
    hand_ = (hand_ + 1) % capacity_;
    used_[slot] = true;
    slots_.erase(texts_[slot]);
    return slot;
  }

  uint32_t capacity_, hand_ = 0, last_ = 0;
  StringMap<uint32_t> slots_;
  std::vector<std::string> texts_;
  std::vector<bool> used_;
};

// V is the form in which the receiver keeps a text, made once by `make`.
template <typename V>
class DictionaryDecoder {
 public:
  template <typename Make>
  V get(Reader& r, Make&& make) {
    uint64_t code = r.varint();
    if (code == 0) return make(r.bytes());
    if (code == 1) {
      uint64_t slot = r.varint();
      // The sender takes new slots in order, so that no message can make the receiver hold more slots than were filled.
      if (slot > values_.size()) throw WireError("control message: dictionary slot out of turn");
      if (slot == values_.size()) values_.emplace_back();
      values_[slot] = make(r.bytes());
      return values_[slot];
    }
    code -= 2;
    if (code >= values_.size() || !values_[code]) throw WireError("control message: empty dictionary slot");
    return values_[code];
  }

 private:
  std::vector<V> values_;
};

}  // namespace hvd::control
