// The choice among schedules; see choose.h and README.md.
#include "choose.h"

namespace hvd::tcp {
namespace {

constexpr uint64_t kLeastChunk = 16384;
constexpr uint64_t kStagingBytes = uint64_t{32} << 20;  // of a communicator, at most (but for the least chunks)
constexpr uint64_t kLeastRingSlice = 65536;             // shorter ones are dominated by the ring's 2n hops

bool is_half(int32_t dtype) { return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16; }
bool is_float(int32_t dtype) { return is_half(dtype) || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64; }

// Would a partial result lose what the whole would not? Halves are rounded, averages of integers wrap.
bool needs_all_at_once(const Collective& collective) {
  return is_half(collective.dtype) || (collective.scale.divisor > 1 && !is_float(collective.dtype));
}

// The bytes that a rank may receive to save hops. A second hop costs a message to every rank, which many ranks feel
// more than the bytes: beyond 16 ranks, 1/8 of the limit more for each.
uint64_t small_limit(const ScheduleParams& params) {
  const uint64_t many = params.size > 16 ? params.size - 16 : 0;
  return params.small + params.small * many / 8;
}

// Some chunks of a part, so that sending, receiving and reducing overlap, but none so small that system calls dominate.
uint64_t chunk_for(uint64_t part, const ScheduleParams& params) {
  const uint64_t fair = kStagingBytes / (uint64_t{kWindow} * params.size);
  const uint64_t most = std::max(kLeastChunk, std::min(params.chunk, fair));
  return (std::clamp(part / 4, kLeastChunk, most) + 63) / 64 * 64;
}

}  // namespace

Schedules::Schedules()
    : exchange_(make_exchange()),
      tree_(make_tree()),
      direct_(make_direct()),
      ring_(make_ring()),
      spread_(make_spread()) {}

Schedule& Schedules::choose(const Collective& collective, ScheduleParams* params) {
  const uint64_t n = params->size;
  if (collective.barrier) return *exchange_;
  switch (collective.coll) {
    case HVD_ALLGATHER: {
      uint64_t total = 0;
      for (const BufferList& part : collective.out) total += part.bytes;
      return total <= small_limit(*params) ? *exchange_ : *spread_;
    }
    case HVD_ALLTOALL:
      return *spread_;
    case HVD_BROADCAST:
      if (n > 2 && collective.extent <= params->small) return *tree_;
      params->chunk = chunk_for(collective.extent / (n - 1), *params);
      return *spread_;
    case HVD_REDUCESCATTER:
      params->chunk = chunk_for(collective.extent, *params);
      return *direct_;
    default:
      break;
  }
  if (collective.show * (n - 1) <= small_limit(*params)) return *exchange_;
  const uint64_t slice = collective.extent / n;
  params->chunk = chunk_for(slice, *params);
  const bool ring = collective.coll == HVD_ALLREDUCE && n > params->ring_ranks && slice >= kLeastRingSlice;
  return ring && !needs_all_at_once(collective) ? *ring_ : *direct_;
}

}  // namespace hvd::tcp
