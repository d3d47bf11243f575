// See adasum.h.
#include "engine/dataplane/adasum.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/dataplane/parts.h"
#include "hvd/backend_abi.h"

namespace hvd::dataplane {

namespace {

// 16-bit elements per conversion: their float32 copies stay in the first-level cache.
constexpr uint64_t kTile = 1024;

// Element i goes to lane i % kLanes. Fixed lanes let the compiler use vectors of any width without a change of order.
constexpr uint64_t kLanes = 8;
static_assert(kTile % kLanes == 0);

struct Lanes {
  double dot[kLanes] = {}, a[kLanes] = {}, b[kLanes] = {};

  template <class T>
  void add(const T* x, const T* y, uint64_t n) {
    uint64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (uint64_t k = 0; k < kLanes; ++k) add_one(k, x[i + k], y[i + k]);
    for (uint64_t k = 0; i + k < n; ++k) add_one(k, x[i + k], y[i + k]);
  }

  void add_one(uint64_t k, double x, double y) {
    dot[k] += x * y;
    a[k] += x * x;
    b[k] += y * y;
  }

  static double total(const double* v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

  AdasumSums sums() const { return {total(dot), total(a), total(b)}; }
};

template <class T>
AdasumSums sums_of(const void* a, const void* b, uint64_t n) {
  Lanes lanes;
  lanes.add(static_cast<const T*>(a), static_cast<const T*>(b), n);
  return lanes.sums();
}

template <class T, class Wide>
void combine(void* dst, const void* a, const void* b, uint64_t n, AdasumWeights w) {
  auto* to = static_cast<T*>(dst);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  const auto wa = static_cast<Wide>(w.a), wb = static_cast<Wide>(w.b);
  for (uint64_t i = 0; i < n; ++i) to[i] = static_cast<T>(wa * static_cast<Wide>(x[i]) + wb * static_cast<Wide>(y[i]));
}

// Calls body(a's tile, b's tile, first element, elements) with 16-bit floats as float32.
template <class F>
void by_tiles(const HostMath& math, const void* a, const void* b, uint64_t n, int32_t dtype, F&& body) {
  alignas(64) float x[kTile], y[kTile];
  const auto *from_a = static_cast<const uint16_t*>(a), *from_b = static_cast<const uint16_t*>(b);
  for (uint64_t at = 0; at < n; at += kTile) {
    const uint64_t some = std::min(kTile, n - at);
    math.convert(x, HVD_FLOAT32, from_a + at, dtype, some);
    math.convert(y, HVD_FLOAT32, from_b + at, dtype, some);
    body(x, y, at, some);
  }
}

double weight(double dot, double norm) {
  static const double kTiny = std::sqrt(DBL_MIN);
  return norm < kTiny ? 1.0 : 1.0 - dot / (2.0 * norm);
}

}  // namespace

AdasumWeights::AdasumWeights(const AdasumSums& sums)
    : a(weight(sums.dot, sums.a_norm)), b(weight(sums.dot, sums.b_norm)) {}

bool adasum_serves(int32_t dtype) {
  return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64;
}

AdasumSums adasum_sums(const HostMath& math, const void* a, const void* b, uint64_t n, int32_t dtype) {
  if (dtype == HVD_FLOAT32) return sums_of<float>(a, b, n);
  if (dtype == HVD_FLOAT64) return sums_of<double>(a, b, n);
  Lanes lanes;
  by_tiles(math, a, b, n, dtype, [&](float* x, float* y, uint64_t, uint64_t some) { lanes.add(x, y, some); });
  return lanes.sums();
}

void adasum_combine(const HostMath& math, void* dst, const void* a, const void* b, uint64_t n, int32_t dtype,
                    AdasumWeights weights) {
  if (dtype == HVD_FLOAT32) return combine<float, double>(dst, a, b, n, weights);
  if (dtype == HVD_FLOAT64) return combine<double, double>(dst, a, b, n, weights);
  by_tiles(math, a, b, n, dtype, [&](float* x, float* y, uint64_t at, uint64_t some) {
    combine<float, float>(x, x, y, some, weights);
    math.convert(static_cast<uint16_t*>(dst) + at, dtype, x, HVD_FLOAT32, some);
  });
}

// Adasum by halving vectors and doubling distances. See adasum.h.
//
// All tensors together are one vector of elements. On level d, ranks r and r ^ 2^d hold the same range of two combined
// vectors and exchange halves of it: the range halves, and the group of ranks that hold one vector doubles. The group
// adds up its scalar products. At the end each rank has one range of the result, and all ranks gather the ranges.

namespace {

// Elements lo .. hi - 1 of the vector.
struct Range {
  uint64_t lo = 0, hi = 0;
  uint64_t size() const { return hi - lo; }
};

// Tensors first .. last - 1.
struct TensorRange {
  size_t first = 0, last = 0;
  size_t size() const { return last - first; }
};

double factor(double f) { return f == 0 ? 1.0 : f; }

// The state of one Adasum. Its steps share it and keep it alive.
class Adasum {
 public:
  Adasum(const Lowering& lowering, const HostMath& math, const plugins::Collective& c)
      : math_(math),
        c_(c),
        ranks_(static_cast<uint32_t>(lowering.size())),
        me_(static_cast<uint32_t>(lowering.rank())) {
    paired_ = std::bit_floor(ranks_);
    levels_ = static_cast<uint32_t>(std::countr_zero(paired_));
    width_ = base::dtype_bytes(c.dtype);
    starts_.push_back(0);
    for (uint64_t n : c.counts) starts_.push_back(starts_.back() + n);
  }

  uint64_t total() const { return starts_.back(); }
  uint64_t bytes(uint64_t elements) const { return elements * width_; }
  uint32_t ranks() const { return ranks_; }

  static void write_alone(const std::shared_ptr<Adasum>& self, Schedule& schedule);
  static void write_gathered(const std::shared_ptr<Adasum>& self, Schedule& schedule, Lowering& lowering);
  static void write_halving(const std::shared_ptr<Adasum>& self, Schedule& schedule, Lowering& lowering);

 private:
  char* at(char* vector, uint64_t element) const { return vector + element * width_; }

  // The range that rank r < paired_ holds after `level` exchanges.
  Range range_of(uint32_t r, uint32_t level) const {
    Range p{0, total()};
    for (uint32_t d = 0; d < level; ++d) {
      const uint64_t middle = p.lo + p.size() / 2;
      (r >> d & 1 ? p.lo : p.hi) = middle;
    }
    return p;
  }

  // The tensors that overlap a range (and empty tensors among them).
  TensorRange tensors_in(Range p) const {
    if (p.size() == 0) return {};
    const auto first = std::upper_bound(starts_.begin(), starts_.end(), p.lo) - 1;
    const auto last = std::lower_bound(starts_.begin(), starts_.end(), p.hi);
    return {static_cast<size_t>(first - starts_.begin()), static_cast<size_t>(last - starts_.begin())};
  }

  Range overlap(Range p, size_t tensor) const {
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
  void unpack(const char* vector, Range p) const;

  // The scalar products of a range, one for each tensor in it; a and b point to the first element of the range.
  void sum(AdasumSums* sums, char* a, char* b, Range p) const;
  void combine(char* to, char* a, char* b, Range p, const AdasumSums* totals) const;
  // Adds up the scalar products of a group's ranks for each tensor in `wanted`. `sums` has the products of each rank
  // from `from` on, in rank order. Every rank adds in the same order.
  void add_up(AdasumSums* totals, TensorRange wanted, const AdasumSums* sums, uint32_t from, uint32_t group,
              uint32_t count, uint32_t level) const;

  void combine_whole(char* a, char* b, uint32_t group, uint32_t level) const;
  void reduce_gathered(char* vectors) const;

  void write_fold(const std::shared_ptr<Adasum>& self, Schedule& schedule, Lowering& lowering, char* vector,
                  hvd_buf received) const;
  void write_level(const std::shared_ptr<Adasum>& self, Schedule& schedule, Lowering& lowering, char* vector,
                   hvd_buf received, uint32_t d) const;

  plugins::Collective like(int32_t coll, int32_t dtype) const {
    return plugins::Collective({.coll = coll, .dtype = dtype, .deadline_ns = c_.deadline_ns, .seq = c_.seq});
  }

  const HostMath& math_;
  const plugins::Collective c_;
  const uint32_t ranks_, me_;
  uint32_t paired_ = 1, levels_ = 0;  // the largest power of two ranks, and its exponent
  uint64_t width_ = 0;
  std::vector<uint64_t> starts_;  // tensor t is elements starts_[t] .. starts_[t + 1] - 1
};

using Self = std::shared_ptr<Adasum>;

// ---------------------------------------------------------------------------------------------------- computations

void Adasum::pack(char* vector) const {
  for (size_t t = 0; t < c_.counts.size(); ++t)
    scale(at(vector, starts_[t]), address(c_.in[t]), c_.counts[t], factor(c_.prescale));
}

void Adasum::unpack(const char* vector, Range p) const {
  const TensorRange s = tensors_in(p);
  for (size_t t = s.first; t < s.last; ++t) {
    const Range part = overlap(p, t);
    scale(address(c_.out[t]) + bytes(part.lo - starts_[t]), vector + bytes(part.lo - p.lo), part.size(),
          factor(c_.postscale));
  }
}

void Adasum::sum(AdasumSums* sums, char* a, char* b, Range p) const {
  const TensorRange s = tensors_in(p);
  for (size_t t = s.first; t < s.last; ++t) {
    const Range part = overlap(p, t);
    *sums++ = adasum_sums(math_, at(a, part.lo - p.lo), at(b, part.lo - p.lo), part.size(), c_.dtype);
  }
}

void Adasum::combine(char* to, char* a, char* b, Range p, const AdasumSums* totals) const {
  const TensorRange s = tensors_in(p);
  for (size_t t = s.first; t < s.last; ++t) {
    const Range part = overlap(p, t);
    const uint64_t offset = part.lo - p.lo;
    adasum_combine(math_, at(to, offset), at(a, offset), at(b, offset), part.size(), c_.dtype,
                   AdasumWeights(*totals++));
  }
}

void Adasum::add_up(AdasumSums* totals, TensorRange wanted, const AdasumSums* sums, uint32_t from, uint32_t group,
                    uint32_t count, uint32_t level) const {
  std::fill(totals, totals + wanted.size(), AdasumSums{});
  for (uint32_t r = from; r < group + count; ++r) {
    const TensorRange s = tensors_in(range_of(r, level));
    if (r >= group)
      for (size_t t = std::max(s.first, wanted.first); t < std::min(s.last, wanted.last); ++t)
        totals[t - wanted.first] += sums[t - s.first];
    sums += s.size();
  }
}

// Combines two whole vectors, range by range as a group of 2^level ranks would.
void Adasum::combine_whole(char* a, char* b, uint32_t group, uint32_t level) const {
  const uint32_t count = 1u << level;
  std::vector<AdasumSums> sums;
  for (uint32_t r = group; r < group + count; ++r) {
    const Range p = range_of(r, level);
    const size_t before = sums.size();
    sums.resize(before + tensors_in(p).size());
    sum(sums.data() + before, at(a, p.lo), at(b, p.lo), p);
  }
  const Range all{0, total()};
  std::vector<AdasumSums> totals(tensors_in(all).size());
  add_up(totals.data(), tensors_in(all), sums.data(), group, group, count, level);
  combine(a, a, b, all, totals.data());
}

void Adasum::reduce_gathered(char* vectors) const {
  for (uint32_t r = paired_; r < ranks_; ++r)
    combine_whole(at(vectors, (r - paired_) * total()), at(vectors, r * total()), 0, 0);
  for (uint32_t d = 0; d < levels_; ++d)
    for (uint32_t r = 0; r < paired_; r += 2u << d)
      combine_whole(at(vectors, r * total()), at(vectors, (r + (1u << d)) * total()), r, d + 1);
}

// ----------------------------------------------------------------------------------------------------------- steps

void Adasum::write_alone(const Self& self, Schedule& schedule) {
  schedule.compute([self](Schedule&) {
    for (size_t t = 0; t < self->c_.counts.size(); ++t)
      self->scale(address(self->c_.out[t]), address(self->c_.in[t]), self->c_.counts[t],
                  factor(self->c_.prescale) * factor(self->c_.postscale));
  });
}

void Adasum::write_gathered(const Self& self, Schedule& schedule, Lowering& lowering) {
  const hvd_buf mine = schedule.scratch_buf(self->bytes(self->total()));
  const hvd_buf all = schedule.scratch_buf(self->bytes(self->total() * self->ranks_));
  schedule.compute([self, mine](Schedule&) { self->pack(address(mine)); });
  auto gather = self->like(HVD_ALLGATHER, self->c_.dtype);
  gather.in = {mine};
  gather.out = {all};
  gather.counts = {self->total()};
  lowering.write_steps(schedule, gather);
  schedule.compute([self, all](Schedule&) {
    self->reduce_gathered(address(all));
    self->unpack(address(all), {0, self->total()});
  });
}

void Adasum::write_halving(const Self& self, Schedule& schedule, Lowering& lowering) {
  const Adasum& a = *self;
  const bool takes_two = a.me_ + a.paired_ < a.ranks_;
  const hvd_buf whole = schedule.scratch_buf(a.bytes(a.total()));
  const hvd_buf received = schedule.scratch_buf(a.bytes(takes_two ? a.total() : (a.total() + 1) / 2));
  char* const vector = address(whole);
  schedule.compute([self, vector](Schedule&) { self->pack(vector); });
  if (a.paired_ < a.ranks_) a.write_fold(self, schedule, lowering, vector, received);
  for (uint32_t d = 0; d < a.levels_; ++d) a.write_level(self, schedule, lowering, vector, received, d);

  // The gathered ranges are in rank order, which differs from the order of elements. They overwrite the vector.
  const Range mine = a.me_ < a.paired_ ? a.range_of(a.me_, a.levels_) : Range{};
  schedule.compute([self, vector, received, mine](Schedule&) {
    if (mine.size() > 0) std::memcpy(address(received), self->at(vector, mine.lo), self->bytes(mine.size()));
  });
  auto gather = a.like(HVD_ALLGATHER, a.c_.dtype);
  gather.in = {received};
  gather.out = {whole};
  gather.counts = {mine.size()};
  for (uint32_t r = 0; r < a.ranks_; ++r)
    gather.out_counts.push_back(r < a.paired_ ? a.range_of(r, a.levels_).size() : 0);
  lowering.write_steps(schedule, gather);
  schedule.compute([self, vector](Schedule&) {
    const char* from = vector;
    for (uint32_t r = 0; r < self->paired_; ++r) {
      const Range p = self->range_of(r, self->levels_);
      self->unpack(from, p);
      from += self->bytes(p.size());
    }
  });
}

void Adasum::write_fold(const Self& self, Schedule& schedule, Lowering& lowering, char* vector,
                        hvd_buf received) const {
  auto give = like(HVD_ALLTOALL, c_.dtype);
  give.in_counts.resize(ranks_);
  give.out_counts.resize(ranks_);
  const bool sends = me_ >= paired_, receives = me_ + paired_ < ranks_;
  if (sends) give.in_counts[me_ - paired_] = total();
  if (receives) give.out_counts[me_ + paired_] = total();
  give.counts = {sends ? total() : 0};
  give.in = {{vector, 0, bytes(give.counts[0])}};
  give.out = {part_of(received, 0, bytes(receives ? total() : 0))};
  lowering.write_steps(schedule, give);
  if (receives)
    schedule.compute([self, vector, received](Schedule&) { self->combine_whole(vector, address(received), 0, 0); });
}

void Adasum::write_level(const Self& self, Schedule& schedule, Lowering& lowering, char* vector, hvd_buf received,
                         uint32_t d) const {
  const bool taking_part = me_ < paired_;
  const uint32_t partner = me_ ^ (1u << d), group = me_ >> (d + 1) << (d + 1), count = 2u << d;
  const Range mine = taking_part ? range_of(me_, d + 1) : Range{},
              given = taking_part ? range_of(partner, d + 1) : Range{};

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
  lowering.write_steps(schedule, swap);

  // The own and the received half are a and b; a is the half that the lower ranks of the group have combined.
  char* const own = at(vector, mine.lo);
  char* a = own;
  char* b = address(received);
  if (me_ >> d & 1) std::swap(a, b);

  auto gather = like(HVD_ALLGATHER, HVD_FLOAT64);
  constexpr uint64_t kDoubles = sizeof(AdasumSums) / sizeof(double);
  uint64_t all_sums = 0;
  for (uint32_t r = 0; r < ranks_; ++r) {
    const uint64_t n = r < paired_ ? tensors_in(range_of(r, d + 1)).size() : 0;
    gather.out_counts.push_back(n * kDoubles);
    all_sums += n;
  }
  const uint64_t my_sums = tensors_in(mine).size();
  auto* const sums = schedule.scratch_array<AdasumSums>(my_sums);
  auto* const gathered = schedule.scratch_array<AdasumSums>(all_sums);
  gather.counts = {my_sums * kDoubles};
  gather.in = {{sums, 0, my_sums * sizeof(AdasumSums)}};
  gather.out = {{gathered, 0, all_sums * sizeof(AdasumSums)}};
  if (taking_part) schedule.compute([self, sums, a, b, mine](Schedule&) { self->sum(sums, a, b, mine); });
  lowering.write_steps(schedule, gather);
  if (!taking_part) return;
  schedule.compute([self, sums, gathered, own, a, b, mine, group, count, d](Schedule&) {
    self->add_up(sums, self->tensors_in(mine), gathered, 0, group, count, d + 1);
    self->combine(own, a, b, mine, sums);
  });
}

}  // namespace

void AdasumLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (!adasum_serves(c.dtype))
    throw plugins::BackendError(
        HVD_E_UNSUPPORTED, 0, 0,
        std::string("Adasum of ") + base::dtype_name(c.dtype) +
            " is not supported: it works on float16, bfloat16, float32 and float64. Convert the "
            "tensor, or use Sum or Average (UNSUPPORTED)");
  const auto self = std::make_shared<Adasum>(inner_, math_, c);
  if (self->total() == 0) return;
  if (self->ranks() == 1)
    Adasum::write_alone(self, schedule);
  else if (self->bytes(self->total()) <= local_bytes_ / self->ranks())
    Adasum::write_gathered(self, schedule, inner_);
  else
    Adasum::write_halving(self, schedule, inner_);
}

}  // namespace hvd::dataplane
