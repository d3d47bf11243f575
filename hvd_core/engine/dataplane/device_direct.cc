// See device_direct.h.
#include "engine/dataplane/device_direct.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/aligned.h"
#include "engine/dataplane/parts.h"
#include "engine/dataplane/staged.h"

namespace hvd::dataplane {

namespace {

using Copies = std::vector<plugins::Device::Copy>;

// Collectives whose list of buffers can be packed into one buffer, in place.
bool packs(int32_t coll) { return coll == HVD_ALLREDUCE || coll == HVD_REDUCE || coll == HVD_BROADCAST; }
bool moves(int32_t coll) { return coll == HVD_BROADCAST || coll == HVD_ALLGATHER || coll == HVD_ALLTOALL; }
bool is_one(double factor) { return factor == 1.0 || factor == 0.0; }

bool all_aligned(const plugins::Collective& c, uint32_t alignment) {
  if (alignment <= 1) return true;
  for (size_t i = 0; i < c.counts.size(); ++i)
    if (misaligned(c.in[i], alignment) || (c.out[i].base && misaligned(c.out[i], alignment))) return false;
  return true;
}

// Whether a list has two or more buffers that should be packed. It depends on sizes only, which are equal on all ranks.
bool worth_packing(const plugins::Collective& c, uint64_t below) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  return std::count_if(c.counts.begin(), c.counts.end(), [&](uint64_t n) { return n && n * width < below; }) > 1;
}

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

const Ability& DeviceLowering::ask(const plugins::Collective& c, uint32_t factors) {
  return abilities_.ask(c.coll, c.dtype, c.op, !c.out_counts.empty() || !c.in_counts.empty(), factors);
}

// Whether the factors can be applied; *left: the factors that copies have to apply.
bool DeviceLowering::scalable(const plugins::Collective& c, uint32_t* left) {
  *left = 0;
  const uint32_t factors = Abilities::factors_of(c);
  if (factors == 0 || ask(c, factors).served) return true;
  *left = factors;
  return device_->scales(c.dtype);
}

// The widest served type whose width divides the width of c.dtype; -1 if there is no served type.
int32_t DeviceLowering::carrier(const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const bool varying = !c.out_counts.empty() || !c.in_counts.empty();
  int32_t best = -1;
  // BOOL is no carrier, because a backend may normalise its values. Floats come last: a backend may canonicalise them.
  constexpr std::array kCarriers{HVD_UINT64, HVD_INT64, HVD_UINT32, HVD_INT32,  HVD_UINT16,
                                 HVD_INT16,  HVD_UINT8, HVD_INT8,   HVD_FLOAT32};
  for (int32_t t : kCarriers) {
    const uint64_t w = base::dtype_bytes(t);
    if (width % w != 0 || (best >= 0 && base::dtype_bytes(best) >= w)) continue;
    if (abilities_.serves(c.coll, t, HVD_SUM, varying)) best = t;
  }
  return best;
}

DeviceLowering::Method DeviceLowering::method(const plugins::Collective& c) {
  uint32_t left = 0;
  const Ability& native = ask(c, Abilities::kNone);
  // If max_count is limited, the ranks have to agree on a number of rounds. Only the composed alltoall does that.
  const bool unlimited = c.coll != HVD_ALLTOALL || native.max_count == UINT64_MAX;
  if (native.served && unlimited && scalable(c, &left)) return Method::Native;
  if (moves(c.coll) && !native.served) {
    const int32_t t = carrier(c);
    if (t >= 0 && (c.coll != HVD_ALLTOALL || ask(relabelled(c, t), 0).max_count == UINT64_MAX)) return Method::AsBytes;
  }
  if (base::has_reduction(c.coll) && c.op == HVD_AVG && base::is_floating(c.dtype)) {
    plugins::Collective sum = c;
    sum.op = HVD_SUM;
    sum.postscale = 0.5;
    if (ask(sum, Abilities::kNone).served && scalable(sum, &left)) return Method::SumAndDivide;
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
  const Ability& ability = ask(c, Abilities::factors_of(c) & ~left);
  const double pre = left & Abilities::kPrescale ? c.prescale : 1.0;
  const double post = left & Abilities::kPostscale ? c.postscale : 1.0;
  if (left & Abilities::kPrescale) c.prescale = 1.0;
  if (left & Abilities::kPostscale) c.postscale = 1.0;
  const bool list = c.counts.size() > 1 && !(comm_.caps() & HVD_CAP_VECTORED);
  // Addresses differ between ranks. They may decide which memory is used, but not the number of buffers of a call.
  const bool one = c.counts.size() == 1 && !all_aligned(c, ability.alignment);
  if (packs(c.coll) && (list || left || one)) return write_packed(schedule, c, ability, UINT64_MAX, pre, post);
  if (packs(c.coll) && worth_packing(c, ability.pack_below))
    return write_packed(schedule, c, ability, ability.pack_below, pre, post);
  if (left || !all_aligned(c, ability.alignment)) return write_moved(schedule, c, ability, pre, post);
  emit(schedule, c, ability);
}

// Packs buffers of fewer than `below` bytes into one. The other buffers follow it.
void DeviceLowering::write_packed(Schedule& schedule, const plugins::Collective& c, const Ability& ability,
                                  uint64_t below, double pre, double post) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  plugins::Collective one(c.settings());
  one.counts = {0};
  for (uint64_t n : c.counts)
    if (n * width < below) one.counts[0] += n;
  const hvd_buf all = fusion(schedule, one.counts[0] * width, ability.alignment);
  one.in = one.out = {all};
  const bool sends = c.coll != HVD_BROADCAST || c.root == rank(), receives = c.coll != HVD_REDUCE || c.root == rank();
  Copies before, after;
  uint64_t at = 0;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width;
    if (bytes >= below) {
      one.in.push_back(c.in[i]);
      one.out.push_back(c.out[i]);
      one.counts.push_back(c.counts[i]);
      continue;
    }
    const hvd_buf part = part_of(all, at, bytes);
    at += bytes;
    if (!bytes) continue;
    if (sends) before.push_back({part, part_of(c.in[i], 0, bytes), bytes});
    const bool has_result = c.coll == HVD_BROADCAST && c.root == rank() && same_place(c.in[i], c.out[i]);
    if (receives && c.out[i].base && !has_result) after.push_back({part_of(c.out[i], 0, bytes), part, bytes});
  }
  copy(schedule, std::move(before), c.dtype, pre);
  all_aligned(one, ability.alignment) ? emit(schedule, one, ability) : write_moved(schedule, one, ability, 1.0, 1.0);
  copy(schedule, std::move(after), c.dtype, post);
}

// Copies each buffer to other memory.
void DeviceLowering::write_moved(Schedule& schedule, const plugins::Collective& c, const Ability& ability, double pre,
                                 double post) {
  Relocated r =
      relocate(c, rank(), size(), [&](uint64_t bytes) { return scratch(schedule, bytes, ability.alignment); });
  copy(schedule, std::move(r.before), c.dtype, pre);
  emit(schedule, r.c, ability);
  copy(schedule, std::move(r.after), c.dtype, post);
}

// The buffers are aligned, and the backend applies the factors.
void DeviceLowering::emit(Schedule& schedule, const plugins::Collective& c, const Ability& ability) {
  std::vector<plugins::Collective> members;
  bool fits = true;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t n = c.coll == HVD_ALLGATHER ? out_elements(c, i, rank(), size()) : c.counts[i];
    fits = fits && (n <= ability.max_count || c.coll == HVD_ALLTOALL);
  }
  if (fits && (c.counts.size() == 1 || (comm_.caps() & HVD_CAP_VECTORED))) return enqueue(schedule, {c}, false);
  for (size_t i = 0; i < c.counts.size(); ++i) members.push_back(single_buffer(c, i, static_cast<size_t>(size())));
  if (fits) return enqueue(schedule, std::move(members), true);
  for (const plugins::Collective& one : members)
    c.coll == HVD_ALLGATHER || c.coll == HVD_REDUCESCATTER ? write_slices(schedule, one, ability)
                                                           : write_split(schedule, one, ability);
}

void DeviceLowering::enqueue(Schedule& schedule, std::vector<plugins::Collective> members, bool grouped) {
  const uint64_t caps = comm_.caps();
  grouped = grouped && members.size() > 1 && (caps & (HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED));
  // A REQUEST communicator does not know the stream: the schedule waits for earlier work on it. Later work on the
  // stream is enqueued when the collective is complete.
  if (!(caps & HVD_CAP_STREAM)) write_stream_wait(schedule, device_, device_->stream());
  if (grouped) return schedule.group(comm_, std::move(members));
  for (plugins::Collective& c : members) schedule.collective(comm_) = std::move(c);
}

void DeviceLowering::write_split(Schedule& schedule, const plugins::Collective& c, const Ability& ability) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  // A multiple of the alignment, so that each part is aligned if the buffer is.
  const uint64_t unit = std::max<uint64_t>(1, ability.alignment / width);
  const uint64_t most = std::max<uint64_t>(1, ability.max_count / unit * unit);
  plugins::Collective one = c;
  for (uint64_t at = 0; at < c.counts[0]; at += most) {
    const uint64_t n = std::min(most, c.counts[0] - at);
    one.in[0] = part_of(c.in[0], at * width, n * width);
    if (c.out[0].base) one.out[0] = part_of(c.out[0], at * width, n * width);
    one.counts[0] = n;
    enqueue(schedule, {one}, false);
  }
}

// ALLGATHER, REDUCESCATTER: several calls, each with the next few elements of every rank's part, through scratch memory
// on both sides.
void DeviceLowering::write_slices(Schedule& schedule, const plugins::Collective& c, const Ability& ability) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  const bool gathers = c.coll == HVD_ALLGATHER, in_place = same_place(c.in[0], c.out[0]);
  const uint64_t slice = std::max<uint64_t>(1, ability.max_count / ranks);
  std::vector<uint64_t> parts, starts;  // elements
  uint64_t total = 0, longest = 0;
  for (size_t r = 0; r < ranks; ++r) {
    parts.push_back(out_part(c, 0, static_cast<int32_t>(r), size()));
    starts.push_back(total);
    total += parts.back();
    longest = std::max(longest, parts.back());
  }
  const hvd_buf all = scratch(schedule, slice * ranks * width, ability.alignment);
  const hvd_buf own = scratch(schedule, slice * width, ability.alignment);
  const hvd_buf& whole = gathers ? c.out[0] : c.in[0];
  // In place, the results of early calls would overwrite the input of later ones.
  const hvd_buf mine = !gathers && in_place  ? scratch(schedule, parts[me] * width, 1)
                       : gathers && in_place ? part_of(c.in[0], starts[me] * width, parts[me] * width)
                       : gathers             ? c.in[0]
                                             : c.out[0];
  plugins::Collective one = c;
  for (uint64_t at = 0; at < longest; at += slice) {
    Copies far, near;
    uint64_t sum = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const uint64_t n = at < parts[r] ? std::min(slice, parts[r] - at) : 0, bytes = n * width;
      if (!one.out_counts.empty()) one.out_counts[r] = n;
      const hvd_buf there = part_of(whole, (starts[r] + at) * width, bytes), here = part_of(all, sum * width, bytes);
      if (bytes)
        far.push_back(gathers ? plugins::Device::Copy{there, here, bytes} : plugins::Device::Copy{here, there, bytes});
      if (bytes && r == me) {
        const hvd_buf kept = part_of(mine, at * width, bytes), part = part_of(own, 0, bytes);
        near.push_back(gathers ? plugins::Device::Copy{part, kept, bytes} : plugins::Device::Copy{kept, part, bytes});
      }
      sum += n;
    }
    const uint64_t n = at < parts[me] ? std::min(slice, parts[me] - at) : 0;
    one.in = {gathers ? part_of(own, 0, n * width) : part_of(all, 0, sum * width)};
    one.out = {gathers ? part_of(all, 0, sum * width) : part_of(own, 0, n * width)};
    one.counts = {gathers ? n : sum};
    copy(schedule, gathers ? std::move(near) : std::move(far), c.dtype, 1.0);
    enqueue(schedule, {one}, false);
    copy(schedule, gathers ? std::move(far) : std::move(near), c.dtype, 1.0);
  }
  const uint64_t bytes = parts[me] * width;
  if (!gathers && in_place && bytes) copy(schedule, {{part_of(c.out[0], 0, bytes), mine, bytes}}, c.dtype, 1.0);
}

void DeviceLowering::copy(Schedule& schedule, Copies list, int32_t dtype, double scale) {
  if (list.empty()) return;
  schedule.compute([device = device_, list = std::move(list), dtype, scale](Schedule&) {
    if (is_one(scale)) return device->copy(device->stream(), list);
    std::vector<plugins::Device::ScaledCopy> scaled;
    const uint64_t width = base::dtype_bytes(dtype);
    for (const auto& c : list) scaled.push_back({c.dst, c.src, c.bytes / width, dtype, scale});
    device->copy_scaled(device->stream(), scaled);
  });
}

// Memory for packing. If the backend registers memory, one buffer serves all packed collectives: the device's one
// stream orders its uses. It grows with the packed sizes, which are equal on all ranks, so all ranks register the same
// sizes. A buffer that has become too small may still be in use and is kept.
hvd_buf DeviceLowering::fusion(Schedule& schedule, uint64_t bytes, uint64_t alignment) {
  constexpr uint64_t kLeast = uint64_t{4} << 20;
  if (registers_ && (fusion_.empty() || fusion_.back().memory->buf.bytes < bytes)) {
    auto memory = device_->allocate(HVD_MEM_DEVICE, std::bit_ceil(std::max(bytes, kLeast)), alignment);
    void* const registered = comm_.register_memory(memory->buf);
    registers_ = registered != nullptr;
    if (registers_) fusion_.push_back({std::move(memory), registered});
  }
  if (!registers_) return scratch(schedule, bytes, alignment);
  const auto& memory = fusion_.back().memory;
  if (misaligned(memory->buf, static_cast<uint32_t>(alignment))) return scratch(schedule, bytes, alignment);
  schedule.keep(memory);
  return part_of(memory->buf, 0, bytes);
}

void DeviceLowering::release() noexcept {
  registers_ = false;
  for (const Fusion& f : fusion_) comm_.deregister_memory(f.registered);
  fusion_.clear();
}

hvd_buf DeviceLowering::scratch(Schedule& schedule, uint64_t bytes, uint64_t alignment) {
  auto memory = device_->allocate(HVD_MEM_DEVICE, bytes, alignment);
  const hvd_buf buf = memory->buf;
  schedule.keep(std::move(memory));
  return buf;
}

// -------------------------------------------------------------------------------------------------- BounceLowering

void BounceLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (Abilities::factors_of(c) == 0 || inner_.method(c) != DeviceLowering::Method::None) return bounce(schedule, c);
  plugins::Collective one = c;
  one.prescale = one.postscale = 1.0;
  const auto scaled = [this](std::vector<hvd_buf> to, std::vector<hvd_buf> from, std::vector<uint64_t> counts,
                             int32_t dtype, double by) {
    return [=, this](Schedule&) {
      for (size_t i = 0; i < counts.size(); ++i)
        if (counts[i]) math_.convert(address(to[i]), dtype, address(from[i]), dtype, counts[i], by);
    };
  };
  const uint64_t width = base::dtype_bytes(c.dtype);
  if (!is_one(c.prescale)) {
    for (size_t i = 0; i < c.counts.size(); ++i) one.in[i] = schedule.scratch_buf(c.counts[i] * width);
    schedule.compute(scaled(one.in, c.in, c.counts, c.dtype, c.prescale), "MEMCPY_IN_FUSION_BUFFER");
  }
  bounce(schedule, one);
  if (is_one(c.postscale)) return;
  std::vector<uint64_t> results;
  for (size_t i = 0; i < c.counts.size(); ++i) results.push_back(out_elements(c, i, rank(), size()));
  schedule.compute(scaled(c.out, c.out, std::move(results), c.dtype, c.postscale), "MEMCPY_OUT_FUSION_BUFFER");
}

void BounceLowering::bounce(Schedule& schedule, const plugins::Collective& c) {
  Area area;
  relocate(c, rank(), size(), [&](uint64_t bytes) { return area.add(bytes); });
  auto memory = device_->allocate(HVD_MEM_DEVICE, area.total());
  area.begin(memory->buf);
  schedule.keep(std::move(memory));
  Relocated there = relocate(c, rank(), size(), [&](uint64_t bytes) { return area.place(bytes); });
  const hvd_stream stream = device_->stream();
  schedule.at_settle([device = device_, stream](int64_t deadline_ns) { device->drain(stream, deadline_ns); });
  // Most of the host memory of a composition is pageable, which a batched copy cannot read.
  if (!there.before.empty()) {
    schedule.compute([device = device_, before = std::move(there.before)](Schedule&) {
      device->copy_each(device->stream(), before);
    });
  }
  inner_.write_steps(schedule, there.c);
  if (!there.after.empty()) {
    // A copy to pageable memory may block its caller, which must not wait for other ranks.
    write_stream_wait(schedule, device_, stream);
    schedule.compute(
        [device = device_, after = std::move(there.after)](Schedule&) { device->copy_each(device->stream(), after); });
  }
  // Also without a result: the sent data must not change while the device reads them.
  write_stream_wait(schedule, device_, stream);
}

}  // namespace hvd::dataplane
