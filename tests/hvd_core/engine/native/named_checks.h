// Programs of several checks: their expectations, and their main().
//
//   PROGRAM          prints the names of the checks
//   PROGRAM NAME     runs one; exits with 1 and a line for each failed expectation
#pragma once

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace named_checks {

inline int failures = 0;

using List = std::vector<std::pair<const char*, void (*)()>>;

// The exit code of main().
inline int run(const List& all, int argc, char** argv) {
  for (const auto& [name, check] : all) {
    if (argc < 2) std::printf("%s\n", name);
    if (argc < 2 || std::strcmp(argv[1], name) != 0) continue;
    check();
    return failures ? 1 : 0;
  }
  return argc < 2 ? 0 : 2;
}

}  // namespace named_checks

#define EXPECT(condition)                                                 \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      ++named_checks::failures;                                           \
    }                                                                     \
  } while (false)

#define CHECK(name) {#name, name}
