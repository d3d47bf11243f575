// See abilities.h.
#include "engine/dataplane/abilities.h"

#include <bit>

#include "engine/base/operations.h"
#include "engine/dataplane/parts.h"

namespace hvd::dataplane {

uint32_t Abilities::factors_of(const plugins::Collective& c) {
  if (!base::has_reduction(c.coll)) return kNone;
  const auto is_one = [](double factor) { return factor == 1.0 || factor == 0.0; };
  return (is_one(c.prescale) ? kNone : kPrescale) | (is_one(c.postscale) ? kNone : kPostscale);
}

const Ability& Abilities::ask(int32_t coll, int32_t dtype, int32_t op, bool varying, uint32_t factors) {
  if (!base::has_reduction(coll)) {
    op = HVD_SUM;
    factors = kNone;
  }
  const uint32_t key = static_cast<uint32_t>(coll) << 24 | (static_cast<uint32_t>(dtype) & 0xff) << 16 |
                       (static_cast<uint32_t>(op) & 0xff) << 8 | (varying ? 1u : 0u) | factors;
  if (last_ && key == last_key_) return *last_;
  auto at = known_.find(key);
  if (at == known_.end()) at = known_.emplace(key, query(coll, dtype, op, varying, factors)).first;
  last_key_ = key;
  last_ = &at->second;
  return at->second;
}

Ability Abilities::query(int32_t coll, int32_t dtype, int32_t op, bool varying, uint32_t factors) {
  plugins::Collective c;
  c.coll = coll;
  c.dtype = dtype;
  c.op = op;
  // A query may not depend on the values of factors, so any value except 1 serves.
  if (factors & kPrescale) c.prescale = 0.5;
  if (factors & kPostscale) c.postscale = 0.5;
  const auto size = static_cast<uint64_t>(comm_.size());
  if (coll != HVD_BARRIER) {
    // One buffer with one element per rank; a query reads no addresses.
    const bool divided = coll == HVD_REDUCESCATTER || coll == HVD_ALLTOALL;
    c.in = c.out = {hvd_buf{}};
    c.counts = {divided ? size : 1};
    if (varying) c.out_counts.assign(size, 1);
    if (varying && coll == HVD_ALLTOALL) c.in_counts.assign(size, 1);
  }
  Ability a;
  try {
    const hvd_coll_caps caps = comm_.query(c, &a.why);
    a.served = caps.support != HVD_UNSERVED;
    if (caps.alignment > 1) a.alignment = std::bit_ceil(caps.alignment);
    if (caps.max_count > 0) a.max_count = caps.max_count;
    a.pack_below = caps.pack_below;
  } catch (const plugins::BackendError& e) {
    // A backend may answer INVALID (to an average of booleans, for example); it does not serve the collective then.
    if (e.code != HVD_E_INVALID) throw;
  }
  return a;
}

}  // namespace hvd::dataplane
