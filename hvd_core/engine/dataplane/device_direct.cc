// See device_direct.h.
#include "engine/dataplane/device_direct.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/staged.h"

namespace hvd::dataplane {

namespace {

bool moves(int32_t coll) { return coll == HVD_BROADCAST || coll == HVD_ALLGATHER || coll == HVD_ALLTOALL; }
bool is_one(double factor) { return factor == 1.0 || factor == 0.0; }

// The collective `c` on elements of type `to`, whose width divides the width of c.dtype.
plugins::Collective relabelled(const plugins::Collective& c, int32_t to) {
  plugins::Collective r = c;
  const uint64_t k = base::dtype_bytes(c.dtype) / base::dtype_bytes(to);
  r.dtype = to;
  for (auto* list : {&r.counts, &r.in_counts, &r.out_counts})
    for (uint64_t& n : *list) n *= k;
  return r;
}

}  // namespace

// Whether the factors can be applied; *left: the factors that copies have to apply.
bool DeviceLowering::scalable(const plugins::Collective& c, uint32_t* left) {
  *left = 0;
  const uint32_t factors = Abilities::factors_of(c);
  if (factors == 0 || abilities_.ask(c, factors).served) return true;
  *left = factors;
  return device_->scales(c.dtype);
}

// The widest served type whose width divides the width of c.dtype; -1 if there is no served type.
int32_t DeviceLowering::carrier(const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  int32_t best = -1;
  // BOOL is no carrier, because a backend may normalise its values. Floats come last: a backend may canonicalise them.
  constexpr std::array kCarriers{HVD_UINT64, HVD_INT64, HVD_UINT32, HVD_INT32,  HVD_UINT16,
                                 HVD_INT16,  HVD_UINT8, HVD_INT8,   HVD_FLOAT32};
  for (int32_t t : kCarriers) {
    const uint64_t w = base::dtype_bytes(t);
    if (width % w != 0 || (best >= 0 && base::dtype_bytes(best) >= w)) continue;
    if (abilities_.serves(c.coll, t, HVD_SUM, c.varying())) best = t;
  }
  return best;
}

DeviceLowering::Method DeviceLowering::method(const plugins::Collective& c) {
  uint32_t left = 0;
  const Ability& native = abilities_.ask(c, Abilities::kNone);
  // If max_count is limited, the ranks have to agree on a number of rounds. Only the composed alltoall does that.
  const bool unlimited = c.coll != HVD_ALLTOALL || native.max_count == UINT64_MAX;
  if (native.served && unlimited && scalable(c, &left)) return Method::Native;
  if (moves(c.coll) && !native.served) {
    const int32_t t = carrier(c);
    if (t >= 0 && (c.coll != HVD_ALLTOALL || abilities_.ask(relabelled(c, t), 0).max_count == UINT64_MAX))
      return Method::AsBytes;
  }
  if (base::has_reduction(c.coll) && c.op == HVD_AVG && base::is_floating(c.dtype)) {
    plugins::Collective sum = c;
    sum.op = HVD_SUM;
    sum.postscale = 0.5;
    if (abilities_.ask(sum, Abilities::kNone).served && scalable(sum, &left)) return Method::SumAndDivide;
  }
  return Method::None;
}

void DeviceLowering::write_steps(Schedule& schedule, const plugins::Collective& given) {
  plugins::Collective c = given;
  switch (method(c)) {
    case Method::AsBytes:
      c = relabelled(c, carrier(c));
      break;
    case Method::SumAndDivide:
      c.op = HVD_SUM;
      c.postscale = (is_one(c.postscale) ? 1.0 : c.postscale) / size();
      break;
    default:
      break;
  }
  c.stream = device_->stream();
  if (c.coll != HVD_ALLTOALL) {  // nothing to do if all ranks have 0 elements, which all ranks know
    uint64_t total = 0;
    for (size_t i = 0; i < c.counts.size(); ++i)
      total += c.coll == HVD_ALLGATHER ? out_elements(c, i, rank(), size()) : c.counts[i];
    if (total == 0) return;
  }
  uint32_t left = 0;
  scalable(c, &left);
  const Ability& ability = abilities_.ask(c, Abilities::factors_of(c) & ~left);
  const double pre = left & Abilities::kPrescale ? c.prescale : 1.0;
  const double post = left & Abilities::kPostscale ? c.postscale : 1.0;
  if (left & Abilities::kPrescale) c.prescale = 1.0;
  if (left & Abilities::kPostscale) c.postscale = 1.0;
  const bool list = c.counts.size() > 1 && !(comm_.caps() & HVD_CAP_VECTORED);
  // Addresses differ between ranks. They may decide which memory is used, but not the number of buffers of a call.
  const bool moved = c.counts.size() == 1 && !all_aligned(c, ability.alignment);
  const bool all = list || left || moved;
  const auto add = [&](const plugins::Collective& one) { emit(schedule, one, ability); };
  const uint64_t below = all ? UINT64_MAX : ability.pack_below;
  const Small small = is_elementwise(c.coll) ? small_buffers(c, below) : Small();
  if (!is_elementwise(c.coll) || !(all || small.buffers > 1))
    return packer_.write_moved(schedule, c, ability.alignment, pre, post, add);
  const hvd_buf packed = packing_memory(schedule, small.bytes, ability.alignment);
  packer_.write_packed(schedule, c, below, packed, pre, post, [&](const plugins::Collective& one) {
    packer_.write_moved(schedule, one, ability.alignment, 1.0, 1.0, add);
  });
}

// The buffers are aligned, and the backend applies the factors.
void DeviceLowering::emit(Schedule& schedule, const plugins::Collective& c, const Ability& ability) {
  const bool fits = !packer_.exceeds(c, ability.max_count);
  if (fits && (c.counts.size() == 1 || (comm_.caps() & HVD_CAP_VECTORED))) return enqueue(schedule, {c});
  std::vector<plugins::Collective> members;
  for (size_t i = 0; i < c.counts.size(); ++i) members.push_back(single_buffer(c, i, static_cast<size_t>(size())));
  if (fits) return enqueue(schedule, std::move(members));
  for (const plugins::Collective& one : members)
    packer_.write_split(schedule, one, ability.max_count, ability.alignment,
                        [&](const plugins::Collective& part) { enqueue(schedule, {part}); });
}

void DeviceLowering::enqueue(Schedule& schedule, std::vector<plugins::Collective> members) {
  const uint64_t caps = comm_.caps();
  // A REQUEST communicator does not know the stream: the schedule waits for earlier work on it. Later work on the
  // stream is enqueued when the collective is complete.
  if (!(caps & HVD_CAP_STREAM)) write_stream_wait(schedule, device_, device_->stream());
  if (members.size() > 1 && (caps & (HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED)))
    return schedule.group(comm_, std::move(members));
  for (plugins::Collective& c : members) schedule.collective(comm_) = std::move(c);
}

// Memory for packing. If the backend registers memory, one buffer serves all packed collectives: the device's one
// stream orders its uses. It grows with the packed sizes, which are equal on all ranks, so all ranks register the same
// sizes. A buffer that has become too small may still be in use and is kept.
hvd_buf DeviceLowering::packing_memory(Schedule& schedule, uint64_t bytes, uint64_t alignment) {
  constexpr uint64_t kLeast = uint64_t{4} << 20;
  if (registers_ && (packing_.empty() || packing_.back().memory->buf.bytes < bytes)) {
    auto memory = device_->allocate(HVD_MEM_DEVICE, std::bit_ceil(std::max(bytes, kLeast)), alignment);
    void* const registered = comm_.register_memory(memory->buf);
    registers_ = registered != nullptr;
    if (registers_) packing_.push_back({std::move(memory), registered});
  }
  if (!registers_) return packer_.scratch(schedule, bytes, alignment);
  const auto& memory = packing_.back().memory;
  if (misaligned(memory->buf, alignment)) return packer_.scratch(schedule, bytes, alignment);
  schedule.keep(memory);
  return part_of(memory->buf, 0, bytes);
}

void DeviceLowering::release() noexcept {
  registers_ = false;
  for (const PackingMemory& f : packing_) comm_.deregister_memory(f.registered);
  packing_.clear();
}

// -------------------------------------------------------------------------------------------------- BounceLowering

void BounceLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  const uint32_t factors = Abilities::factors_of(c);
  if (factors == 0 || inner_.method(c) != DeviceLowering::Method::None) return bounce(schedule, c);
  packer_.write_scaled(schedule, c, factors, [&](const plugins::Collective& one) { bounce(schedule, one); });
}

void BounceLowering::bounce(Schedule& schedule, const plugins::Collective& c) {
  Relocated there = relocate(c, rank(), size(), [&](uint64_t bytes) { return scratch_on(schedule, *device_, bytes); });
  const hvd_stream stream = device_->stream();
  schedule.at_settle([device = device_, stream](int64_t deadline_ns) { device->drain(stream, deadline_ns); });
  // Most of the host memory of a composition is pageable, which a batched copy cannot read.
  const auto copy_each = [&](Copies copies) {
    schedule.compute(
        [device = device_, copies = std::move(copies)](Schedule&) { device->copy_each(device->stream(), copies); });
  };
  if (!there.before.empty()) copy_each(std::move(there.before));
  inner_.write_steps(schedule, there.c);
  if (!there.after.empty()) {
    // A copy to pageable memory may block its caller, which must not wait for other ranks.
    write_stream_wait(schedule, device_, stream);
    copy_each(std::move(there.after));
  }
  // Also without a result: the sent data must not change while the device reads them.
  write_stream_wait(schedule, device_, stream);
}

}  // namespace hvd::dataplane
