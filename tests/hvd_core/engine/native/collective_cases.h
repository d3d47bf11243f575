// Collectives for tests of lowerings: every kind, type and reduction, with buffers whose content depends on the rank,
// and the comparison of two runs of one of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../../abi/support.h"
#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/parts.h"
#include "engine/dataplane/schedule.h"

namespace test {

using namespace hvd;
using dataplane::Schedule;
using plugins::Collective;

inline constexpr int32_t kDtypes[] = {HVD_UINT8,    HVD_INT8,          HVD_UINT16,      HVD_INT16,   HVD_INT32,
                                      HVD_INT64,    HVD_FLOAT16,       HVD_FLOAT32,     HVD_FLOAT64, HVD_BOOL,
                                      HVD_BFLOAT16, HVD_FLOAT8_E4M3FN, HVD_FLOAT8_E5M2, HVD_UINT32,  HVD_UINT64};

inline void run(Schedule& schedule) {
  for (int turn = 0; !schedule.advance(); ++turn)
    if (turn % 2) schedule.wait(test::in_seconds(0.001));
}

// Elements whose sums, products and averages of a few ranks are worth comparing.
inline void fill(std::mt19937_64& random, const dataplane::HostMath& math, char* to, uint64_t n, int32_t dtype,
                 bool moves) {
  const uint64_t width = base::dtype_bytes(dtype);
  const bool is_float = dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64;
  for (uint64_t i = 0; i < n; ++i) {
    if (dtype == HVD_BOOL) {
      to[i] = static_cast<char>(random() & 1);
    } else if (is_float && !moves) {
      const double x = std::uniform_real_distribution<double>(-4, 4)(random);
      math.convert(to + i * width, dtype, &x, HVD_FLOAT64, 1);
    } else {
      const uint64_t bits = random();  // NaNs and all
      std::memcpy(to + i * width, &bits, width);
    }
  }
}

struct Case {
  int32_t coll = 0, dtype = 0, op = 0, root = 0;
  bool in_place = false, varying = false;
  double pre = 1, post = 1;
  uint64_t shift = 0;            // bytes by which buffers are misaligned
  std::vector<uint64_t> counts;  // per buffer; for a v form: the unit that the parts are made from
  std::string text() const {
    std::string s = std::string(base::collective_name(coll)) + " " + base::dtype_name(dtype) + " " +
                    base::reduce_op_name(op) + (in_place ? " in place" : "") + (varying ? " varying" : "") + " root " +
                    std::to_string(root) + " factors " + std::to_string(pre) + ", " + std::to_string(post) + " shift " +
                    std::to_string(shift) + " counts";
    for (uint64_t n : counts) s += " " + std::to_string(n);
    return s;
  }
};

// The buffers of one rank and one run.
struct Buffers {
  std::vector<std::vector<char>> memory;
  Collective c;
};

// Elements that rank `from` has for rank `to` in buffer i, where sizes vary.
inline uint64_t part(const Case& x, size_t i, int from, int to, int size) {
  const auto u = static_cast<uint64_t>(from * 5 + to * 3) + i;
  return x.varying ? x.counts[i] * (u % 3) / 2 + (x.counts[i] ? u % 2 : 0)
                   : x.counts[i] + 0 * static_cast<uint64_t>(size);
}

inline Buffers make(const Case& x, int rank, int size, const dataplane::HostMath& math, uint64_t seed) {
  Buffers b;
  Collective& c = b.c;
  c.coll = x.coll;
  c.dtype = x.dtype;
  c.op = x.op;
  c.root = x.root;
  c.prescale = x.pre;
  c.postscale = x.post;
  if (x.coll == HVD_BARRIER) return b;
  const uint64_t width = base::dtype_bytes(x.dtype);
  std::mt19937_64 random(seed * 977 + static_cast<uint64_t>(rank));
  for (size_t i = 0; i < x.counts.size(); ++i) {
    uint64_t in = 0, out = 0, skip = 0;
    for (int r = 0; r < size; ++r) {
      switch (x.coll) {
        case HVD_ALLGATHER:
          if (r == rank) skip = out;
          out += part(x, i, r, 0, size);
          if (x.varying) c.out_counts.push_back(part(x, i, r, 0, size));
          if (r == rank) in = part(x, i, r, 0, size);
          break;
        case HVD_REDUCESCATTER:
          in += part(x, i, 0, r, size);
          if (x.varying) c.out_counts.push_back(part(x, i, 0, r, size));
          if (r == rank) out = part(x, i, 0, r, size);
          break;
        case HVD_ALLTOALL:
          in += part(x, i, rank, r, size);
          out += part(x, i, r, rank, size);
          if (x.varying) c.in_counts.push_back(part(x, i, rank, r, size));
          if (x.varying) c.out_counts.push_back(part(x, i, r, rank, size));
          break;
        default:
          in = out = x.counts[i];
      }
    }
    const uint64_t room = x.in_place ? std::max(in, out) : in;
    auto& from = b.memory.emplace_back(room * width + 64 + x.shift, '\x5a');
    char* const p = from.data() + x.shift;
    char* q = p;
    if (!x.in_place) q = b.memory.emplace_back(out * width + 64 + x.shift, '\x5a').data() + x.shift;
    const bool has = (x.coll != HVD_BROADCAST || rank == x.root);
    const bool at_place = x.in_place && x.coll == HVD_ALLGATHER;
    if (has) fill(random, math, p + (at_place ? skip * width : 0), in, x.dtype, !base::has_reduction(x.coll));
    c.in.push_back({p, 0, room * width});
    c.out.push_back({q, 0, out * width});
    c.counts.push_back(in);
  }
  return b;
}

// The same memory once more, for another run.
inline Buffers copy(const Buffers& from) {
  Buffers to = from;
  for (auto* list : {&to.c.in, &to.c.out}) {
    for (hvd_buf& b : *list) {
      for (size_t k = 0; k < from.memory.size(); ++k) {
        const char *const begin = from.memory[k].data(), *const end = begin + from.memory[k].size();
        const char* const p = static_cast<const char*>(b.base);
        if (p < begin || p >= end) continue;
        b.base = to.memory[k].data() + (p - begin);
        break;
      }
    }
  }
  return to;
}

// Writes nothing where it must not: a non-root's result of a reduce is left out of the comparison, all else is in.
inline bool same(const Case& x, const Buffers& a, const Buffers& b, int rank) {
  if (x.coll == HVD_REDUCE && rank != x.root) return true;
  for (size_t i = 0; i < a.c.out.size(); ++i) {
    const uint64_t n = a.c.out[i].bytes;
    if (n && std::memcmp(a.c.out[i].base, b.c.out[i].base, n) != 0) return false;
  }
  // Nothing behind the ends of the buffers.
  for (size_t i = 0; i < b.memory.size(); ++i)
    for (size_t k = b.memory[i].size() - 64; k < b.memory[i].size(); ++k)
      if (b.memory[i][k] != '\x5a' && a.memory[i][k] == '\x5a') return false;
  return true;
}

// Every collective with every type and reduction, some times with other shapes, factors and so on: `reducing` times the
// reductions, of which each type has several, and `moving` times the others.
inline std::vector<Case> make_cases(int size, uint64_t seed, int reducing, int moving) {
  std::vector<Case> all;
  std::mt19937_64 random(seed);
  const std::vector<std::vector<uint64_t>> shapes{{1}, {17}, {0}, {5, 1, 9}, {3, 0}, {1023}, {64, 64}, {2500}};
  size_t shape = 0;
  for (int32_t coll : {HVD_ALLREDUCE, HVD_REDUCE, HVD_BROADCAST, HVD_ALLGATHER, HVD_REDUCESCATTER, HVD_ALLTOALL}) {
    for (int32_t dtype : kDtypes) {
      for (int32_t op = 0; op < (base::has_reduction(coll) ? HVD_REDOP_COUNT : 1); ++op) {
        for (int k = 0; k < (base::has_reduction(coll) ? reducing : moving); ++k) {
          Case x;
          x.coll = coll;
          x.dtype = dtype;
          x.op = op;
          x.root = static_cast<int32_t>(random() % static_cast<uint64_t>(size));
          x.varying = coll >= HVD_ALLGATHER && random() % 2;
          // The reference does not do these two in place with several ranks.
          x.in_place = coll < HVD_REDUCESCATTER && random() % 2;
          if (base::has_reduction(coll) && random() % 3 == 0) x.pre = 1.5, x.post = 0.75;
          x.shift = random() % 2 ? 0 : base::dtype_bytes(dtype);
          x.counts = shapes[shape++ % shapes.size()];
          all.push_back(x);
        }
      }
    }
  }
  for (int32_t dtype : {HVD_FLOAT16, HVD_INT64, HVD_FLOAT32}) {
    Case x;
    x.coll = HVD_ALLREDUCE;
    x.dtype = dtype;
    x.op = HVD_AVG;
    x.counts = {70001, 3};
    all.push_back(x);
  }
  Case barrier;
  barrier.coll = HVD_BARRIER;
  all.push_back(barrier);
  return all;
}

}  // namespace test
