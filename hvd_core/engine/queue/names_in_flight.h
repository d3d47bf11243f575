// The names of the requests in flight, which are unique within a process set. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <unordered_set>

#include "engine/control/messages.h"

namespace hvd::queue {

class NamesInFlight {
 public:
  // Returns false if the name is taken. Throws std::bad_alloc.
  bool insert(control::SetId set, const control::NameRef& name) { return names_.insert({set, name}).second; }
  void erase(control::SetId set, const control::NameRef& name) { names_.erase({set, name}); }
  bool contains(control::SetId set, const control::NameRef& name) const { return names_.contains({set, name}); }
  void clear() { names_.clear(); }

 private:
  struct Name {
    control::SetId set;
    control::NameRef text;
    bool operator==(const Name& other) const {
      return set == other.set && (text == other.text || *text == *other.text);
    }
  };
  struct Hash {
    size_t operator()(const Name& n) const { return std::hash<std::string>{}(*n.text) + n.set; }
  };
  std::unordered_set<Name, Hash> names_;
};

}  // namespace hvd::queue
