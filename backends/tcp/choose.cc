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
bool needs_all_at_once(const Plan& plan) {
  return is_half(plan.dtype) || (plan.scale.divisor > 1 && !is_float(plan.dtype));
}

// What a rank may receive to save hops. A second hop costs a message to everybody, which many ranks feel more than the
// bytes: beyond 16 ranks, 1/8 of the limit for each.
uint64_t small_limit(const Room& room) {
  const uint64_t many = room.size > 16 ? room.size - 16 : 0;
  return room.small + room.small * many / 8;
}

// Some chunks of a part, so that sending, receiving and reducing overlap, but none so small that system calls dominate.
uint64_t chunk_for(uint64_t part, const Room& room) {
  const uint64_t fair = kStagingBytes / (uint64_t{kWindow} * room.size);
  const uint64_t most = std::max(kLeastChunk, std::min(room.chunk, fair));
  return (std::clamp(part / 4, kLeastChunk, most) + 63) / 64 * 64;
}

}  // namespace

Schedules::Schedules()
    : exchange_(make_exchange()),
      tree_(make_tree()),
      direct_(make_direct()),
      ring_(make_ring()),
      spread_(make_spread()) {}

Schedule& Schedules::choose(const Plan& plan, Room* room) {
  const uint64_t n = room->size;
  if (plan.barrier) return *exchange_;
  switch (plan.coll) {
    case HVD_ALLGATHER: {
      uint64_t total = 0;
      for (const Stream& part : plan.out) total += part.bytes;
      return total <= small_limit(*room) ? *exchange_ : *spread_;
    }
    case HVD_ALLTOALL:
      return *spread_;
    case HVD_BROADCAST:
      if (n > 2 && plan.extent <= room->small) return *tree_;
      room->chunk = chunk_for(plan.extent / (n - 1), *room);
      return *spread_;
    case HVD_REDUCESCATTER:
      room->chunk = chunk_for(plan.extent, *room);
      return *direct_;
    default:
      break;
  }
  if (plan.show * (n - 1) <= small_limit(*room)) return *exchange_;
  const uint64_t slice = plan.extent / n;
  room->chunk = chunk_for(slice, *room);
  const bool ring = plan.coll == HVD_ALLREDUCE && n > room->ring_ranks && slice >= kLeastRingSlice;
  return ring && !needs_all_at_once(plan) ? *ring_ : *direct_;
}

}  // namespace hvd::tcp
