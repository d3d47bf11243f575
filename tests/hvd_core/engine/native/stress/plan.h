// The operations of the ranks of a round, drawn from a seed: streams of steps, a few operations in each, and the
// expected results.
//
// All ranks follow the same plan (they are in one process), each with values of its own. Immutable once made; any
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/operations.h"
#include "engine/core/engine.h"
#include "rng.h"

namespace hvd::native {

using Members = std::vector<int32_t>;  // world ranks, ascending

struct Op {
  base::OpKind kind = base::OpKind::Allreduce;
  int32_t dtype = 0, reduce_op = 0, root = 0;
  std::optional<std::string> name;
  // Of each tensor: its elements, or the elements of a row where the rows differ or are shared out.
  std::vector<int64_t> counts;
  bool in_place = true;
  int poisoned_by = -1;  // the rank on which this call fails before it gets to the engine
  int other_on = -1;     // the rank that asks for another size than the others
  int64_t salt = 0;
};

struct Step {
  std::vector<Op> ops;
  bool at_once = false;  // one operation, for which its caller waits at once
};

// One thread's worth of work on every member of a process set. `depth`: so many steps may be under way at a time.
struct Stream {
  size_t set = 0;  // index into Plan::sets
  int depth = 1;
  std::vector<Step> steps;
};

struct PlanOptions {
  int ranks = 2, streams = 1, steps = 20, sets = 0;
  bool mistakes = true;
};

struct Plan {
  std::vector<Members> sets;  // the first has all ranks
  std::vector<Stream> streams;
};

Plan make_plan(Rng& rng, const PlanOptions& options);
// Steps for ranks that have different numbers of them and then join.
std::vector<Step> make_uneven(Rng& rng, int steps);
// Some ranks, at least one.
Members draw_members(Rng& rng, int ranks);

// Memory of one rank for one operation. Must outlive the request.
class Buffers {
 public:
  Buffers(const Op& op, int rank, const Members& members);
  agreement::SigRef signature() const;
  const std::vector<calls::Tensor>& in() const { return in_; }
  const std::vector<calls::Tensor>& out() const { return out_; }
  const std::vector<std::vector<int64_t>>& splits() const { return splits_; }
  // `joined` ranks take no part any more. Ends the program when a value is wrong.
  void check(const calls::Request& request, const Members& joined) const;

 private:
  void check_gathered(const calls::Request& request, size_t i, const Members& joined, const std::string& what) const;
  void check_reduced(size_t i, const Members& joined, const std::string& what) const;
  int64_t rows(int rank, size_t tensor) const;
  int64_t split(int from, int to, size_t tensor) const;

  const Op& op_;
  const int rank_;
  const Members& members_;
  std::vector<std::vector<char>> memory_;
  std::vector<calls::Tensor> in_, out_;
  std::vector<std::vector<int64_t>> splits_;
};

}  // namespace hvd::native
