// Adasum by halving vectors and doubling distances. See adasum.h.
//
// All tensors together are one vector of elements. On level d ranks r and r ^ 2^d, which hold the same piece of two
// combined vectors, exchange halves of it, so that a piece halves and a vector's group of ranks doubles; the group adds
// up its scalar products. In the end each rank has one piece of the result, and all gather the pieces.
#include "engine/data/adasum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/adasum_math.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

namespace {

struct Piece {
  uint64_t lo = 0, hi = 0;
  uint64_t size() const { return hi - lo; }
};

// Tensors first .. last - 1.
struct Span {
  size_t first = 0, last = 0;
  size_t size() const { return last - first; }
};

double factor(double f) { return f == 0 ? 1.0 : f; }

// What all steps of one Adasum know; lives as long as they do.
class Adasum {
 public:
  Adasum(const Transport& transport, const HostMath& math, const plugin::Collective& c)
      : math_(math),
        c_(c),
        ranks_(static_cast<uint32_t>(transport.size())),
        me_(static_cast<uint32_t>(transport.rank())) {
    paired_ = std::bit_floor(ranks_);
    levels_ = static_cast<uint32_t>(std::countr_zero(paired_));
    width_ = types::dtype_bytes(c.dtype);
    starts_.push_back(0);
    for (uint64_t n : c.counts) starts_.push_back(starts_.back() + n);
  }

  uint64_t total() const { return starts_.back(); }
  uint64_t bytes(uint64_t elements) const { return elements * width_; }
  uint32_t ranks() const { return ranks_; }

  static void plan_alone(const std::shared_ptr<Adasum>& self, Program& program);
  static void plan_gathered(const std::shared_ptr<Adasum>& self, Program& program, Transport& transport);
  static void plan_halving(const std::shared_ptr<Adasum>& self, Program& program, Transport& transport);

 private:
  char* at(char* vector, uint64_t element) const { return vector + element * width_; }

  // The piece that rank r < paired_ holds after `level` exchanges.
  Piece piece(uint32_t r, uint32_t level) const {
    Piece p{0, total()};
    for (uint32_t d = 0; d < level; ++d) {
      const uint64_t middle = p.lo + p.size() / 2;
      (r >> d & 1 ? p.lo : p.hi) = middle;
    }
    return p;
  }

  // The tensors that a piece touches (and empty ones among them).
  Span span(Piece p) const {
    if (p.size() == 0) return {};
    const auto first = std::upper_bound(starts_.begin(), starts_.end(), p.lo) - 1;
    const auto last = std::lower_bound(starts_.begin(), starts_.end(), p.hi);
    return {static_cast<size_t>(first - starts_.begin()), static_cast<size_t>(last - starts_.begin())};
  }

  Piece overlap(Piece p, size_t tensor) const {
    const uint64_t lo = std::max(p.lo, starts_[tensor]);
    return {lo, std::max(lo, std::min(p.hi, starts_[tensor + 1]))};
  }

  void scale(char* to, const char* from, uint64_t n, double by) const {
    if (by != 1.0)
      math_.convert(to, c_.dtype, from, c_.dtype, n, by);
    else if (to != from && n > 0)
      std::memcpy(to, from, bytes(n));
  }

  void pack(char* vector) const;
  void unpack(const char* vector, Piece p) const;

  // Scalar products of a piece, one for each tensor of its span; a and b point to the piece.
  void sum(AdasumSums* sums, char* a, char* b, Piece p) const;
  void combine(char* to, char* a, char* b, Piece p, const AdasumSums* totals) const;
  // Adds up what a group's ranks have of each tensor in `wanted`: `sums` has each rank's part, in rank order, from
  // rank `from` on. Every rank adds in the same order.
  void add_up(AdasumSums* totals, Span wanted, const AdasumSums* sums, uint32_t from, uint32_t group, uint32_t count,
              uint32_t level) const;

  void combine_whole(char* a, char* b, uint32_t group, uint32_t level) const;
  void reduce_gathered(char* vectors) const;

  void plan_fold(const std::shared_ptr<Adasum>& self, Program& program, Transport& transport, char* vector,
                 hvd_buf received) const;
  void plan_level(const std::shared_ptr<Adasum>& self, Program& program, Transport& transport, char* vector,
                  hvd_buf received, uint32_t d) const;

  plugin::Collective like(int32_t coll, int32_t dtype) const {
    plugin::Collective c;
    c.coll = coll;
    c.dtype = dtype;
    c.deadline_ns = c_.deadline_ns;
    c.seq = c_.seq;
    return c;
  }

  const HostMath& math_;
  const plugin::Collective c_;
  const uint32_t ranks_, me_;
  uint32_t paired_ = 1, levels_ = 0;  // the largest power of two ranks, and its exponent
  uint64_t width_ = 0;
  std::vector<uint64_t> starts_;  // tensor t is elements starts_[t] .. starts_[t + 1] - 1
};

using Self = std::shared_ptr<Adasum>;

// ------------------------------------------------------------------------------------------------------- computing

void Adasum::pack(char* vector) const {
  for (size_t t = 0; t < c_.counts.size(); ++t)
    scale(at(vector, starts_[t]), address(c_.in[t]), c_.counts[t], factor(c_.prescale));
}

void Adasum::unpack(const char* vector, Piece p) const {
  const Span s = span(p);
  for (size_t t = s.first; t < s.last; ++t) {
    const Piece part = overlap(p, t);
    scale(address(c_.out[t]) + bytes(part.lo - starts_[t]), vector + bytes(part.lo - p.lo), part.size(),
          factor(c_.postscale));
  }
}

void Adasum::sum(AdasumSums* sums, char* a, char* b, Piece p) const {
  const Span s = span(p);
  for (size_t t = s.first; t < s.last; ++t) {
    const Piece part = overlap(p, t);
    *sums++ = adasum_sums(math_, at(a, part.lo - p.lo), at(b, part.lo - p.lo), part.size(), c_.dtype);
  }
}

void Adasum::combine(char* to, char* a, char* b, Piece p, const AdasumSums* totals) const {
  const Span s = span(p);
  for (size_t t = s.first; t < s.last; ++t) {
    const Piece part = overlap(p, t);
    const uint64_t offset = part.lo - p.lo;
    adasum_combine(math_, at(to, offset), at(a, offset), at(b, offset), part.size(), c_.dtype,
                   AdasumWeights(*totals++));
  }
}

void Adasum::add_up(AdasumSums* totals, Span wanted, const AdasumSums* sums, uint32_t from, uint32_t group,
                    uint32_t count, uint32_t level) const {
  std::fill(totals, totals + wanted.size(), AdasumSums{});
  for (uint32_t r = from; r < group + count; ++r) {
    const Span s = span(piece(r, level));
    if (r >= group)
      for (size_t t = std::max(s.first, wanted.first); t < std::min(s.last, wanted.last); ++t)
        totals[t - wanted.first] += sums[t - s.first];
    sums += s.size();
  }
}

// What a group of 2^level ranks does together, piece by piece as they would.
void Adasum::combine_whole(char* a, char* b, uint32_t group, uint32_t level) const {
  const uint32_t count = 1u << level;
  std::vector<AdasumSums> sums;
  for (uint32_t r = group; r < group + count; ++r) {
    const Piece p = piece(r, level);
    const size_t before = sums.size();
    sums.resize(before + span(p).size());
    sum(sums.data() + before, at(a, p.lo), at(b, p.lo), p);
  }
  const Piece all{0, total()};
  std::vector<AdasumSums> totals(span(all).size());
  add_up(totals.data(), span(all), sums.data(), group, group, count, level);
  combine(a, a, b, all, totals.data());
}

void Adasum::reduce_gathered(char* vectors) const {
  for (uint32_t r = paired_; r < ranks_; ++r)
    combine_whole(at(vectors, (r - paired_) * total()), at(vectors, r * total()), 0, 0);
  for (uint32_t d = 0; d < levels_; ++d)
    for (uint32_t r = 0; r < paired_; r += 2u << d)
      combine_whole(at(vectors, r * total()), at(vectors, (r + (1u << d)) * total()), r, d + 1);
}

// -------------------------------------------------------------------------------------------------------- planning

void Adasum::plan_alone(const Self& self, Program& program) {
  program.compute([self](Program&) {
    for (size_t t = 0; t < self->c_.counts.size(); ++t)
      self->scale(address(self->c_.out[t]), address(self->c_.in[t]), self->c_.counts[t],
                  factor(self->c_.prescale) * factor(self->c_.postscale));
  });
}

void Adasum::plan_gathered(const Self& self, Program& program, Transport& transport) {
  const hvd_buf mine = program.scratch_buf(self->bytes(self->total()));
  const hvd_buf all = program.scratch_buf(self->bytes(self->total() * self->ranks_));
  program.compute([self, mine](Program&) { self->pack(address(mine)); });
  auto gather = self->like(HVD_ALLGATHER, self->c_.dtype);
  gather.in = {mine};
  gather.out = {all};
  gather.counts = {self->total()};
  transport.plan(program, gather);
  program.compute([self, all](Program&) {
    self->reduce_gathered(address(all));
    self->unpack(address(all), {0, self->total()});
  });
}

void Adasum::plan_halving(const Self& self, Program& program, Transport& transport) {
  const Adasum& a = *self;
  const bool takes_two = a.me_ + a.paired_ < a.ranks_;
  const hvd_buf whole = program.scratch_buf(a.bytes(a.total()));
  const hvd_buf received = program.scratch_buf(a.bytes(takes_two ? a.total() : (a.total() + 1) / 2));
  char* const vector = address(whole);
  program.compute([self, vector](Program&) { self->pack(vector); });
  if (a.paired_ < a.ranks_) a.plan_fold(self, program, transport, vector, received);
  for (uint32_t d = 0; d < a.levels_; ++d) a.plan_level(self, program, transport, vector, received, d);

  // The pieces come in the order of ranks, which is not that of elements, and may overwrite what is no longer needed.
  const Piece mine = a.me_ < a.paired_ ? a.piece(a.me_, a.levels_) : Piece{};
  program.compute([self, vector, received, mine](Program&) {
    if (mine.size() > 0) std::memcpy(address(received), self->at(vector, mine.lo), self->bytes(mine.size()));
  });
  auto gather = a.like(HVD_ALLGATHER, a.c_.dtype);
  gather.in = {received};
  gather.out = {whole};
  gather.counts = {mine.size()};
  for (uint32_t r = 0; r < a.ranks_; ++r) gather.out_counts.push_back(r < a.paired_ ? a.piece(r, a.levels_).size() : 0);
  transport.plan(program, gather);
  program.compute([self, vector](Program&) {
    const char* from = vector;
    for (uint32_t r = 0; r < self->paired_; ++r) {
      const Piece p = self->piece(r, self->levels_);
      self->unpack(from, p);
      from += self->bytes(p.size());
    }
  });
}

void Adasum::plan_fold(const Self& self, Program& program, Transport& transport, char* vector, hvd_buf received) const {
  auto give = like(HVD_ALLTOALL, c_.dtype);
  give.in_counts.resize(ranks_);
  give.out_counts.resize(ranks_);
  const bool gives = me_ >= paired_, takes = me_ + paired_ < ranks_;
  if (gives) give.in_counts[me_ - paired_] = total();
  if (takes) give.out_counts[me_ + paired_] = total();
  give.counts = {gives ? total() : 0};
  give.in = {{vector, 0, bytes(give.counts[0])}};
  give.out = {received};
  transport.plan(program, give);
  if (takes)
    program.compute([self, vector, received](Program&) { self->combine_whole(vector, address(received), 0, 0); });
}

void Adasum::plan_level(const Self& self, Program& program, Transport& transport, char* vector, hvd_buf received,
                        uint32_t d) const {
  const bool taking_part = me_ < paired_;
  const uint32_t partner = me_ ^ (1u << d), group = me_ >> (d + 1) << (d + 1), count = 2u << d;
  const Piece mine = taking_part ? piece(me_, d + 1) : Piece{}, given = taking_part ? piece(partner, d + 1) : Piece{};

  auto swap = like(HVD_ALLTOALL, c_.dtype);
  swap.in_counts.resize(ranks_);
  swap.out_counts.resize(ranks_);
  if (taking_part) {
    swap.in_counts[partner] = given.size();
    swap.out_counts[partner] = mine.size();
  }
  swap.counts = {given.size()};
  swap.in = {{at(vector, given.lo), 0, bytes(given.size())}};
  swap.out = {{received.base, received.offset, bytes(mine.size())}};
  transport.plan(program, swap);

  // Own and received half as a and b: a is what the group's lower ranks have combined.
  char* const own = at(vector, mine.lo);
  char* a = own;
  char* b = address(received);
  if (me_ >> d & 1) std::swap(a, b);

  auto gather = like(HVD_ALLGATHER, HVD_FLOAT64);
  constexpr uint64_t kDoubles = sizeof(AdasumSums) / sizeof(double);
  uint64_t all_sums = 0;
  for (uint32_t r = 0; r < ranks_; ++r) {
    const uint64_t n = r < paired_ ? span(piece(r, d + 1)).size() : 0;
    gather.out_counts.push_back(n * kDoubles);
    all_sums += n;
  }
  const uint64_t my_sums = span(mine).size();
  auto* const sums = program.scratch_array<AdasumSums>(my_sums);
  auto* const gathered = program.scratch_array<AdasumSums>(all_sums);
  gather.counts = {my_sums * kDoubles};
  gather.in = {{sums, 0, my_sums * sizeof(AdasumSums)}};
  gather.out = {{gathered, 0, all_sums * sizeof(AdasumSums)}};
  if (taking_part) program.compute([self, sums, a, b, mine](Program&) { self->sum(sums, a, b, mine); });
  transport.plan(program, gather);
  if (!taking_part) return;
  program.compute([self, sums, gathered, own, a, b, mine, group, count, d](Program&) {
    self->add_up(sums, self->span(mine), gathered, 0, group, count, d + 1);
    self->combine(own, a, b, mine, sums);
  });
}

}  // namespace

void plan_adasum(Program& program, Transport& transport, const HostMath& math, const plugin::Collective& c,
                 uint64_t local_bytes) {
  if (!adasum_serves(c.dtype))
    throw plugin::BackendError(HVD_E_UNSUPPORTED, 0, 0,
                               std::string("Adasum of ") + types::dtype_name(c.dtype) +
                                   " is not supported: it works on float16, bfloat16, float32 and float64. Convert the "
                                   "tensor, or use Sum or Average (UNSUPPORTED)");
  const auto self = std::make_shared<Adasum>(transport, math, c);
  if (self->total() == 0) return;
  if (self->ranks() == 1)
    Adasum::plan_alone(self, program);
  else if (self->bytes(self->total()) <= local_bytes / self->ranks())
    Adasum::plan_gathered(self, program, transport);
  else
    Adasum::plan_halving(self, program, transport);
}

}  // namespace hvd::data
