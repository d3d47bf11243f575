// See composition.h.
#include "engine/dataplane/composition.h"

#include <array>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/parts.h"

namespace hvd::dataplane {

namespace {

// Below this an exchange and a gather cost more in latency than an allgather of everything costs in bytes.
constexpr uint64_t kExchangeBytes = 64 * 1024;
constexpr uint64_t kLeastSlice = 1024;  // carrier elements that one rank must be able to send another in one call

// Integers first. BOOL is no carrier, because a backend may normalise its values.
constexpr std::array kCarriers{HVD_UINT8,  HVD_INT8,  HVD_UINT16,  HVD_INT16,   HVD_UINT32,  HVD_INT32,
                               HVD_UINT64, HVD_INT64, HVD_FLOAT32, HVD_FLOAT64, HVD_FLOAT16, HVD_BFLOAT16};

// Whether an allreduce of `from` (an integer) by `op` over `ranks` ranks may be done in the float type `to`.
bool fits_float(int32_t from, int32_t to, int32_t op, uint64_t ranks) {
  const uint64_t bits = base::dtype_bytes(from) * 8, mantissa = to == HVD_FLOAT32 ? 24 : 53;
  if (op == HVD_PROD || bits >= mantissa) return false;
  if (op == HVD_MIN || op == HVD_MAX) return true;
  return ranks <= uint64_t{1} << (mantissa - bits);
}

// The same in a wider integer type. The low bits of a sum or product are the same in a wider type; an average needs the
// whole sum.
bool fits_integer(int32_t from, int32_t to, int32_t op, uint64_t ranks) {
  const uint64_t bits = base::dtype_bytes(from) * 8, wide = base::dtype_bytes(to) * 8;
  if (wide <= bits || (base::is_unsigned(to) && !base::is_unsigned(from))) return false;
  return op != HVD_AVG || (wide - bits > 1 && ranks < uint64_t{1} << (wide - bits - 1));
}

}  // namespace

Compositions::Compositions(plugins::Communicator& comm, bool completes)
    : comm_(comm), completes_(completes || (comm.caps() & HVD_CAP_REQUEST)), abilities_(comm) {}

Carrier Compositions::best_carrier(int32_t coll, int32_t dtype, bool varying) {
  const uint64_t width = base::dtype_bytes(dtype);
  Carrier best;
  int best_score = 0;
  for (int32_t t : kCarriers) {
    const uint64_t w = base::dtype_bytes(t);
    // Best is a carrier of the same width, then a divisor of it (the wider, the better); a wider one needs padding.
    const int score = w == width ? 100 : width % w == 0 ? 50 + static_cast<int>(w) : 20 - static_cast<int>(w);
    if (score > best_score && abilities_.serves(coll, t, HVD_SUM, varying)) {
      best = {t, w, varying};
      best_score = score;
    }
  }
  return best;
}

Carrier Compositions::carrier(int32_t coll, int32_t dtype) {
  const uint64_t width = base::dtype_bytes(dtype);
  const bool varying = coll != HVD_BROADCAST;
  if (abilities_.serves(coll, dtype, HVD_SUM, varying)) return {dtype, width, true};
  if (Carrier c = best_carrier(coll, dtype, varying)) {
    c.varying = true;
    return c;
  }
  if (coll != HVD_ALLGATHER) return {};
  if (abilities_.serves(coll, dtype)) return {dtype, width, false};
  return best_carrier(coll, dtype, false);
}

Widening Compositions::widening(int32_t dtype, int32_t op) {
  const auto ranks = static_cast<uint64_t>(comm_.size());
  const int32_t sum_op = op == HVD_AVG ? int32_t{HVD_SUM} : op;
  const auto serves = [&](int32_t t, int32_t o) { return abilities_.serves(HVD_ALLREDUCE, t, o); };
  if (base::is_half(dtype)) return serves(HVD_FLOAT32, sum_op) ? Widening{HVD_FLOAT32, sum_op} : Widening{};
  if (dtype == HVD_BOOL) {
    // "Or" of zeros and ones is their maximum, or sum != 0; "and" is their minimum or product.
    const bool either = op == HVD_SUM || op == HVD_MAX;
    for (int32_t t : {HVD_UINT8, HVD_INT8, HVD_INT32, HVD_FLOAT32, HVD_INT64, HVD_FLOAT64}) {
      if (serves(t, either ? HVD_MAX : HVD_MIN)) return {t, either ? HVD_MAX : HVD_MIN};
      if (!either && serves(t, HVD_PROD)) return {t, HVD_PROD};
      if (either && base::dtype_bytes(t) >= 4 && ranks < (1u << 24) && serves(t, HVD_SUM)) return {t, HVD_SUM};
    }
    return {};
  }
  if (dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64) return {};
  for (int32_t t : {HVD_INT16, HVD_UINT16, HVD_INT32, HVD_UINT32, HVD_INT64, HVD_UINT64})
    if (fits_integer(dtype, t, op, ranks) && serves(t, sum_op)) return {t, sum_op};
  for (int32_t t : {HVD_FLOAT32, HVD_FLOAT64})
    if (fits_float(dtype, t, op, ranks) && serves(t, sum_op)) return {t, sum_op};
  return {};
}

// Whether slices can be exchanged by alltoall. Not if max_count is so small that it would take many rounds.
bool Compositions::exchanges_slices(int32_t dtype) {
  const Carrier c = carrier(HVD_ALLTOALL, dtype);
  if (!c) return false;
  const uint64_t most = abilities_.ask(HVD_ALLTOALL, c.dtype, HVD_SUM, true).max_count;
  return most / kLeastSlice / 2 >= static_cast<uint64_t>(comm_.size());
}

Composition Compositions::reduction(int32_t coll, int32_t dtype, int32_t op, uint64_t bytes) {
  if (!base::is_reducible(dtype, op)) return Composition::None;
  const bool allreduce = coll == HVD_ALLREDUCE;
  const bool native = !allreduce && abilities_.serves(HVD_ALLREDUCE, dtype, op);
  if (allreduce && op == HVD_AVG && (dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64) &&
      abilities_.serves(coll, dtype, HVD_SUM)) {
    return Composition::SumAndDivide;
  }
  const bool gathers{carrier(HVD_ALLGATHER, dtype)}, exchanges = exchanges_slices(dtype);
  if (coll == HVD_REDUCESCATTER) {
    if (exchanges) return Composition::ExchangeReduce;
    if (native || !gathers)
      return choose(HVD_ALLREDUCE, dtype, op, false, bytes) == Composition::None ? Composition::None
                                                                                 : Composition::ThroughAllreduce;
  }
  if (coll == HVD_REDUCE) {
    return choose(HVD_ALLREDUCE, dtype, op, false, bytes) == Composition::None ? Composition::None
                                                                               : Composition::ThroughAllreduce;
  }
  const auto ranks = static_cast<uint64_t>(comm_.size());
  if (allreduce && exchanges && gathers && ranks > 2 && bytes >= kExchangeBytes) return Composition::ExchangeReduce;
  if (const Widening w = widening(dtype, op)) {
    // An allreduce moves about twice its bytes, an allgather the bytes of all ranks. If both cost the same, the
    // allgather is better: it keeps the rank order.
    const bool cheaper = ranks * base::dtype_bytes(dtype) > 2 * base::dtype_bytes(w.dtype);
    if (allreduce && (cheaper || !gathers)) return Composition::Widened;
    if (!allreduce && cheaper) return Composition::ThroughAllreduce;
  }
  return gathers ? Composition::GatherReduce : Composition::None;
}

Composition Compositions::choose(int32_t coll, int32_t dtype, int32_t op, bool varying, uint64_t bytes) {
  const Ability& native = abilities_.ask(coll, dtype, op, varying);
  // If max_count is limited, the ranks have to agree on a number of rounds. Only the composed alltoall does that.
  if (native.served && (coll != HVD_ALLTOALL || native.max_count == UINT64_MAX)) return Composition::Native;
  // The computations of a composition run when a collective is complete, which this lowering cannot tell.
  if (!completes_) return native.served ? Composition::Native : Composition::None;
  switch (coll) {
    case HVD_ALLREDUCE:
    case HVD_REDUCE:
    case HVD_REDUCESCATTER:
      return reduction(coll, dtype, op, bytes);
    case HVD_BROADCAST:
      if (carrier(coll, dtype)) return Composition::Bytes;
      return carrier(HVD_ALLGATHER, dtype) ? Composition::GatheredMove : Composition::None;
    case HVD_ALLTOALL:
      // Both begin with an allgather of sizes (Bytes only if calls have a limit).
      if (!carrier(HVD_ALLGATHER, HVD_UINT64)) return Composition::None;
      return carrier(coll, dtype) ? Composition::Bytes : Composition::GatheredMove;
    case HVD_ALLGATHER:
      return carrier(coll, dtype) ? Composition::Bytes : Composition::None;
    case HVD_BARRIER:
      if (summed_dtype() >= 0) return Composition::ThroughAllreduce;
      return carrier(HVD_ALLGATHER, HVD_UINT8) ? Composition::GatheredMove : Composition::None;
    default:
      return Composition::None;
  }
}

int32_t Compositions::summed_dtype() {
  for (int32_t t : kCarriers)
    if (abilities_.serves(HVD_ALLREDUCE, t)) return t;
  return -1;
}

std::string Compositions::describe(Composition composition, int32_t coll, int32_t dtype, int32_t op) {
  switch (composition) {
    case Composition::Native:
      return "natively";
    case Composition::Bytes: {
      const Carrier c = carrier(coll, dtype);
      if (c.dtype == dtype) return c.varying ? std::string("calls with explicit sizes") : "parts padded to one size";
      return std::string("moving its bytes as ") + base::dtype_name(c.dtype);
    }
    case Composition::GatheredMove:
      return "allgather";
    case Composition::SumAndDivide:
      return "sum + local division";
    case Composition::Widened:
      return std::string("allreduce of ") + base::dtype_name(widening(dtype, op).dtype);
    case Composition::ExchangeReduce:
      return coll == HVD_REDUCESCATTER ? "alltoall + local reduction" : "alltoall + local reduction + allgather";
    case Composition::GatherReduce:
      return "allgather + local reduction";
    case Composition::ThroughAllreduce: {
      const Composition below = coll == HVD_BARRIER ? Composition::Native : choose(HVD_ALLREDUCE, dtype, op, false, 0);
      return below == Composition::Native ? "allreduce" : describe(below, HVD_ALLREDUCE, dtype, op);
    }
    case Composition::None:
      break;
  }
  return "nothing";
}

std::string Compositions::shortage(int32_t coll, int32_t dtype, int32_t op) {
  const std::string name = base::dtype_name(dtype);
  if (coll == HVD_BARRIER) return "has no barrier";
  if (base::has_reduction(coll) && op != HVD_SUM && abilities_.serves(coll, dtype, HVD_SUM)) {
    return "reduces " + name + ", but not by this operation";
  }
  std::vector<std::string> has;
  for (int32_t other : {HVD_ALLREDUCE, HVD_REDUCE, HVD_BROADCAST, HVD_ALLGATHER, HVD_REDUCESCATTER, HVD_ALLTOALL}) {
    bool any = abilities_.serves(other, dtype, HVD_SUM, true) || abilities_.serves(other, dtype);
    if (other == coll) any = false;
    if (any) has.emplace_back(base::collective_name(other));
  }
  if (abilities_.serves(coll, dtype, op))
    return std::string("has limits for ") + base::collective_name(coll) + " of " + name;
  if (has.empty()) return "has no " + name;
  std::string text = "has " + name + " for " + has[0];
  for (size_t i = 1; i < has.size(); ++i) text += (i + 1 == has.size() ? " and " : ", ") + has[i];
  return text + " only";
}

}  // namespace hvd::dataplane
