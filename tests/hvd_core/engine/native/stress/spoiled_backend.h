// A backend of which one rank has spoiled numbers: it passes calls on to a real one, and now and then sends other rows
// than it was told to, or takes part in another collective than the others. What it then needs is memory of its own, so
// that the rank with this backend harms itself no more than its peers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace hvd::native {

struct SpoiledBackend {
  // From here on one collective in `one_in` is spoiled, as the seed says; 0: none. While no engine uses the backend.
  static void begin(uint64_t seed, uint64_t one_in);
  // The backend that stands before the library at `path`, as EngineConfig::Library wants it. One per process.
  static std::string before(const std::string& path, const std::string& name);
  static inline std::atomic<uint64_t> calls{0}, spoiled{0};
};

}  // namespace hvd::native
