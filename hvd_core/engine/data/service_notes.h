// How operations have been served, for reports: NATIVE, EMULATED or STAGED, by device type, collective, type and
// reduction. Any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hvd::data {

class ServiceNotes {
 public:
  struct Key {
    std::string device;
    int32_t coll = 0, dtype = 0, op = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Note {
    std::string backend;  // "shm"; with STAGED the host's
    const char* served;   // "NATIVE"
    std::string how;      // "allgather + local reduction"
  };

  // True the first time.
  bool add(Key key, Note note) {
    std::lock_guard lock(mutex_);
    return notes_.try_emplace(std::move(key), std::move(note)).second;
  }
  bool has(const Key& key) const {
    std::lock_guard lock(mutex_);
    return notes_.contains(key);
  }
  std::map<Key, Note> all() const {
    std::lock_guard lock(mutex_);
    return notes_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, Note> notes_;
};

}  // namespace hvd::data
