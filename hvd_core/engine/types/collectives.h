// Collectives, which backends carry out: names, and which of them reduce or have a root. Made from the table
// hvd/types.inc; the numbers are HVD_* of hvd/backend_abi.h.
#pragma once

#include <hvd/backend_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::types {

enum class CollectiveKind : uint8_t { Moves, Reduces };
enum class Root : uint8_t { Rootless, Rooted };

struct Collective {
  int32_t number;
  const char* name;
  CollectiveKind kind;
  Root root;
};

inline constexpr std::array kCollectives{
#define HVD_COLLECTIVE(ID, number, name, what, root) Collective{number, #name, CollectiveKind::what, Root::root},
#include <hvd/types.inc>
};

#define HVD_COLLECTIVE(ID, NUMBER, name, what, root) \
  static_assert(HVD_##ID == NUMBER && kCollectives[NUMBER].number == NUMBER);
#include <hvd/types.inc>
static_assert(kCollectives.size() == HVD_COLL_COUNT);

constexpr bool is_collective(int32_t coll) { return coll >= 0 && coll < HVD_COLL_COUNT; }
// "allreduce"; "collective" for an unknown number.
constexpr const char* collective_name(int32_t coll) {
  return is_collective(coll) ? kCollectives[static_cast<size_t>(coll)].name : "collective";
}
// ALLREDUCE, REDUCE and REDUCESCATTER.
constexpr bool has_reduction(int32_t coll) {
  return is_collective(coll) && kCollectives[static_cast<size_t>(coll)].kind == CollectiveKind::Reduces;
}
// REDUCE and BROADCAST.
constexpr bool has_root(int32_t coll) {
  return is_collective(coll) && kCollectives[static_cast<size_t>(coll)].root == Root::Rooted;
}

}  // namespace hvd::types
