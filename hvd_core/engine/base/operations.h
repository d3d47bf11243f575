// Collectives, which backends carry out; operations, which callers ask for; and reductions. Made from the table
// hvd/types.inc.
#pragma once

#include <hvd/backend_abi.h>
#include <hvd/frontend_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::base {

enum class CollectiveKind : uint8_t { Moves, Reduces };
enum class Root : uint8_t { Rootless, Rooted };

// A collective of the table: its name, whether it reduces and whether it has a root; the numbers are HVD_* of
// hvd/backend_abi.h. One that is to be carried out, with its buffers, is a plugins::Collective.
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

// Operations, which callers ask for: names, and the collective that carries out each. Made from the table
// hvd/types.inc, with the operations that only the engine knows added at the end.

inline constexpr int32_t kNoCollective = -1;

// X(id, number, name, LABEL, collective) for each operation of the engine's own. Adasum is an allreduce by another
// rule; the next two change the process sets and move no data; then memory that the ranks share. A send is one
// operation of two ranks: one of them sends, and the other receives.
#define HVD_ENGINE_OPERATIONS(X)                                                \
  X(Adasum, 7, adasum, ADASUM, HVD_ALLREDUCE)                                   \
  X(AddProcessSet, 8, add_process_set, ADD_PROCESS_SET, kNoCollective)          \
  X(RemoveProcessSet, 9, remove_process_set, REMOVE_PROCESS_SET, kNoCollective) \
  X(CreateWindow, 10, create_window, CREATE_WINDOW, kNoCollective)              \
  X(Send, 11, send, SEND, HVD_SEND)

// The first numbers are hvd_fe_op's. A join has no signature, so that the coordinator never sees it as an operation.
enum class OpKind : uint8_t {
#define HVD_OPERATION(id, number, name, LABEL, COLLECTIVE) id = number,
#include <hvd/types.inc>
#define X(id, number, name, LABEL, collective) id = number,
  HVD_ENGINE_OPERATIONS(X)
#undef X
};

struct Operation {
  OpKind kind;
  const char* name;   // "allreduce", as in request names
  const char* label;  // "ALLREDUCE", as in Horovod's messages
  int32_t collective;
};

namespace detail {
inline constexpr int32_t HVD_NONE = kNoCollective;
inline constexpr std::array kOperations{
#define HVD_OPERATION(id, number, name, LABEL, COLLECTIVE) Operation{OpKind::id, #name, #LABEL, HVD_##COLLECTIVE},
#include <hvd/types.inc>
#define X(id, number, name, LABEL, collective) Operation{OpKind::id, #name, #LABEL, collective},
    HVD_ENGINE_OPERATIONS(X)
#undef X
};
}  // namespace detail

inline constexpr auto kOperations = detail::kOperations;
inline constexpr size_t kOpKinds = kOperations.size();

#define HVD_OPERATION(id, number, name, LABEL, COLLECTIVE) \
  static_assert(HVD_FE_##LABEL == number && kOperations[number].kind == OpKind::id);
#include <hvd/types.inc>
#define X(id, number, name, LABEL, collective) static_assert(kOperations[number].kind == OpKind::id);
HVD_ENGINE_OPERATIONS(X)
#undef X
#undef HVD_ENGINE_OPERATIONS

constexpr const char* op_name(OpKind kind) { return kOperations[static_cast<size_t>(kind)].name; }
constexpr const char* op_label(OpKind kind) { return kOperations[static_cast<size_t>(kind)].label; }
// HVD_* of backend_abi.h, or kNoCollective. The one place where operations become collectives.
constexpr int32_t collective_of(OpKind kind) { return kOperations[static_cast<size_t>(kind)].collective; }

// Which ranks know the sizes of the results of an allgather or alltoall. A signature has it in the place of a reduce
// op, so that such requests share no batch.
enum Sizes : int32_t {
  kExchanged = 0,  // each rank gives its own, and the engine allocates the results
  kAgreed = 1,     // they follow from the signature, on which all ranks agree
  kCompared = 2,   // each rank gives the sizes of both sides, which are compared before data move
};

constexpr bool sizes_vary(OpKind kind) { return kind == OpKind::Allgather || kind == OpKind::Alltoall; }
constexpr bool has_reduce_op(OpKind kind) { return kind == OpKind::Allreduce || kind == OpKind::Reducescatter; }
constexpr bool changes_sets(OpKind kind) { return kind == OpKind::AddProcessSet || kind == OpKind::RemoveProcessSet; }

// Rows that rank `rank` of `size` gets of `rows` rows in a reducescatter: the first ranks get one more.
constexpr int64_t scattered_rows(int64_t rows, int32_t rank, int32_t size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

// Reductions: HVD_SUM, ..., HVD_AVG of hvd/backend_abi.h, and Adasum, which no backend carries out. Made from the table
// hvd/types.inc.

#define HVD_REDUCTION(ID, number, name, label, user_number) static_assert(HVD_##ID == number);
#define HVD_ENGINE_REDUCTION(ID, number, name, label, user_number) static_assert(HVD_FE_##ID == number);
#include <hvd/types.inc>

// As a reduce op of a call. In the engine Adasum is an operation of its own (OpKind::Adasum).
inline constexpr int32_t kAdasum = HVD_FE_ADASUM;

inline constexpr std::array kReductionLabels{
#define HVD_REDUCTION(ID, number, name, label, user_number) #label,
#include <hvd/types.inc>
};
static_assert(kReductionLabels.size() == HVD_REDOP_COUNT);

constexpr bool is_reduce_op(int32_t op) { return op >= 0 && op < HVD_REDOP_COUNT; }
// "Sum", as in messages and in hvd.Sum; "unknown" for a number that is not a backend's reduction.
constexpr const char* reduce_op_name(int32_t op) {
  return is_reduce_op(op) ? kReductionLabels[static_cast<size_t>(op)] : "unknown";
}

}  // namespace hvd::base
