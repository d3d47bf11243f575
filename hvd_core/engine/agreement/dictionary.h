// Small ids for strings that are sent repeatedly: tensor names and signatures.
//
// Each direction of a link has its own dictionary. The sender alone decides what goes into which slot and says so in
// the message, so that the two ends cannot disagree and need not negotiate. The protocol always means whole names and
// signatures; this codec makes them short. HOROVOD_CACHE_CAPACITY is the number of slots; 0 turns it off.
//
// What a text leaves behind here lies in the memory that is given, not in the program's heap (base/own_pages.h): a
// program may give each of its operations a name of its own. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/agreement/wire.h"

namespace hvd::agreement {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};

template <typename V>
using StringMap = std::unordered_map<std::string, V, StringHash, std::equal_to<>>;

// On the wire: 0 + text (not kept) | 1 + slot + text (kept in slot) | slot + 2.
class DictionaryEncoder {
 public:
  DictionaryEncoder(uint32_t capacity, std::pmr::memory_resource* memory)
      : capacity_(capacity), slots_(memory), texts_(memory), used_(memory) {}

  void put(Writer& w, std::string_view text, bool keep) {
    if (capacity_ == 0 || !keep) {
      w.varint(0);
      w.bytes(text);
      return;
    }
    // A signature is often that of the message before.
    if (last_ < texts_.size() && *texts_[last_] == text) return put_slot(w, last_);
    if (auto it = slots_.find(text); it != slots_.end()) return put_slot(w, it->second);
    uint32_t slot = claim();
    texts_[slot] = &slots_.emplace(text, slot).first->first;
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
    slots_.erase(slots_.find(*texts_[slot]));
    return slot;
  }

  uint32_t capacity_, hand_ = 0, last_ = 0;
  std::pmr::unordered_map<std::pmr::string, uint32_t, StringHash, std::equal_to<>> slots_;
  std::pmr::vector<const std::pmr::string*> texts_;
  std::pmr::vector<bool> used_;
};

// V is the form in which the receiver keeps a text that comes again, made by `make` at the second time.
template <typename V>
class DictionaryDecoder {
 public:
  explicit DictionaryDecoder(std::pmr::memory_resource* memory) : slots_(memory) {}

  template <typename Make>
  V get(Reader& r, Make&& make) {
    uint64_t code = r.varint();
    if (code == 0) return make(r.bytes());
    if (code == 1) {
      uint64_t slot = r.varint();
      // The sender takes new slots in order, so that no message can make the receiver hold more slots than were filled.
      if (slot > slots_.size()) throw WireError("control message: dictionary slot out of turn");
      const std::string_view text = r.bytes();
      V value = make(text);
      if (slot == slots_.size()) slots_.push_back({std::pmr::string(slots_.get_allocator()), V()});
      slots_[slot].text = text;
      slots_[slot].value = V();
      return value;
    }
    code -= 2;
    if (code >= slots_.size()) throw WireError("control message: empty dictionary slot");
    Slot& slot = slots_[code];
    if (!slot.value) slot.value = make(slot.text);
    return slot.value;
  }

 private:
  struct Slot {
    std::pmr::string text;
    V value;
  };
  std::pmr::vector<Slot> slots_;
};

}  // namespace hvd::agreement
