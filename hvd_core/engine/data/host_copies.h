// A list of copies within host memory, which a computation of a schedule carries out. A value; any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace hvd::data {

class HostCopies {
 public:
  struct Copy {
    char* to;
    const char* from;
    uint64_t bytes;
  };

  void add(const Copy& copy) { list_.push_back(copy); }
  bool empty() const { return list_.empty(); }
  void run() const {
    for (const Copy& c : list_) std::memcpy(c.to, c.from, c.bytes);
  }

 private:
  std::vector<Copy> list_;
};

}  // namespace hvd::data
