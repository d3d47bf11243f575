// How operations are served, and the record of it for reports. Any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace hvd::dataplane {

enum class Service {
  Unsupported,
  Native,    // the backend does it
  Emulated,  // composed from other collectives, types or reductions of the backend
  Staged     // copied through host memory
};

constexpr const char* service_name(Service service) {
  switch (service) {
    case Service::Native:
      return "NATIVE";
    case Service::Emulated:
      return "EMULATED";
    case Service::Staged:
      return "STAGED";
    default:
      return "UNSUPPORTED";
  }
}

struct Served {
  Service service = Service::Unsupported;
  std::string how;  // "allgather + local reduction"; may be empty
};

// How operations have been served so far, by device type, collective, dtype and reduction; for reports. Any thread.
class ServiceNotes {
 public:
  struct Key {
    std::string device;
    int32_t coll = 0, dtype = 0, op = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Note {
    std::string backend;  // "shm"; for Staged the backends in host memory, such as "shm x tcp"; "" if a front end made
                          // the copies
    Served served;
  };

  // Returns true if the key was new. A later note for the same key is ignored.
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

}  // namespace hvd::dataplane
