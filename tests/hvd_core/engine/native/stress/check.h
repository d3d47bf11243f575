// What a driver does when something is wrong: says it, with the seed that brings it back, and ends at once.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace hvd::native {

// The current situation, for messages. Set before the threads of a round start.
inline std::string& situation() {
  static auto* text = new std::string;
  return *text;
}

[[noreturn]] inline void wrong(const std::string& what) {
  std::fprintf(stderr, "WRONG: %s\n  in: %s\n", what.c_str(), situation().c_str());
  std::abort();
}

inline void require(bool ok, const std::string& what) {
  if (!ok) wrong(what);
}

}  // namespace hvd::native
