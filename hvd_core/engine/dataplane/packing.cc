// See packing.h.
#include "engine/dataplane/packing.h"

#include <algorithm>

#include "engine/base/dtypes.h"
#include "engine/dataplane/abilities.h"

namespace hvd::dataplane {

namespace {

constexpr const char* kIn = "MEMCPY_IN_FUSION_BUFFER";
constexpr const char* kOut = "MEMCPY_OUT_FUSION_BUFFER";

bool is_one(double factor) { return factor == 1.0 || factor == 0.0; }

// The root of a broadcast has its result in place, perhaps in memory that it must not write to.
bool has_result(const plugins::Collective& c, size_t i, int32_t rank) {
  return c.coll == HVD_BROADCAST && c.root == rank && same_place(c.in[i], c.out[i]);
}

}  // namespace

ByteList ByteList::part(uint64_t at, uint64_t bytes) const {
  ByteList found;
  for (const hvd_buf& b : buffers_) {
    if (bytes == 0) break;
    if (at < b.bytes) {
      const uint64_t n = std::min(b.bytes - at, bytes);
      found.add(part_of(b, at, n));
      bytes -= n;
    }
    at -= std::min(at, b.bytes);
  }
  return found;
}

Copies ByteList::pack(const hvd_buf& packed) const {
  Copies copies;
  walk([&](const hvd_buf& b, uint64_t offset) {
    if (b.base) copies.push_back({part_of(packed, offset, b.bytes), b, b.bytes});
  });
  return copies;
}

Copies ByteList::unpack(const hvd_buf& packed) const {
  Copies copies = pack(packed);
  for (auto& c : copies) std::swap(c.dst, c.src);
  return copies;
}

char* ByteList::contiguous() const {
  for (size_t i = 1; i < buffers_.size(); ++i)
    if (address(buffers_[i]) != address(buffers_[i - 1]) + buffers_[i - 1].bytes) return nullptr;
  return buffers_.empty() ? nullptr : address(buffers_[0]);
}

bool misaligned(const hvd_buf& b, uint64_t alignment) {
  return (reinterpret_cast<uintptr_t>(b.base) + b.offset) % alignment != 0;
}

bool all_aligned(const plugins::Collective& c, uint64_t alignment) {
  const auto off = [alignment](const hvd_buf& b) { return b.base && misaligned(b, alignment); };
  return alignment <= 1 || (std::ranges::none_of(c.in, off) && std::ranges::none_of(c.out, off));
}

hvd_buf scratch_on(Schedule& schedule, plugins::Device& device, uint64_t bytes, int32_t kind, uint64_t alignment) {
  auto memory = device.allocate(kind, bytes, alignment);
  const hvd_buf buf = memory->buf;
  schedule.keep(std::move(memory));
  return buf;
}

void copy_on_host(Schedule& schedule, Copies copies, const char* phase) {
  if (copies.empty()) return;
  schedule.compute(
      [copies = std::move(copies)](Schedule&) {
        for (const auto& c : copies) std::memcpy(address(c.dst), address(c.src), c.bytes);
      },
      phase);
}

Relocated relocate(const plugins::Collective& c, int32_t rank, int32_t size,
                   const std::function<hvd_buf(uint64_t bytes)>& place,
                   const std::function<bool(const hvd_buf&)>& moves) {
  Relocated r{c, {}, {}};
  const uint64_t width = base::dtype_bytes(c.dtype);
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t in = in_elements(c, i, rank) * width, out = out_elements(c, i, rank, size) * width;
    const bool in_place = same_place(c.in[i], c.out[i]);
    const bool moves_in = moves(c.in[i]), moves_out = c.out[i].base && moves(c.out[i]);
    uint64_t skip = 0;
    if (is_elementwise(c.coll) && in_place) {
      if (moves_in || moves_out) r.c.in[i] = r.c.out[i] = place(std::max({in, out, c.counts[i] * width}));
    } else {
      // In place, this rank's input of an allgather lies at its place in the output.
      if (in_place && c.coll == HVD_ALLGATHER) skip = out_start(c, i, rank, size) * width;
      if (moves_in) r.c.in[i] = place(in);
      if (moves_out) r.c.out[i] = place(out);
    }
    if (in && moves_in) r.before.push_back({part_of(r.c.in[i], 0, in), part_of(c.in[i], skip, in), in});
    if (out && moves_out && !has_result(c, i, rank))
      r.after.push_back({part_of(c.out[i], 0, out), part_of(r.c.out[i], 0, out), out});
  }
  return r;
}

Small small_buffers(const plugins::Collective& c, uint64_t below) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  Small small;
  for (uint64_t n : c.counts) {
    if (n == 0 || n * width >= below) continue;
    ++small.buffers;
    small.bytes += n * width;
  }
  return small;
}

hvd_buf Packer::scratch(Schedule& schedule, uint64_t bytes, uint64_t alignment) const {
  if (device_) return scratch_on(schedule, *device_, bytes, HVD_MEM_DEVICE, alignment);
  char* const p = schedule.scratch(bytes + alignment);
  const auto at = reinterpret_cast<uintptr_t>(p);
  return {p + ((at + alignment - 1) / alignment * alignment - at), 0, bytes};
}

void Packer::copy(Schedule& schedule, Copies copies, int32_t dtype, double factor, const char* phase) const {
  if (copies.empty()) return;
  if (!device_ && is_one(factor)) return copy_on_host(schedule, std::move(copies), phase);
  const uint64_t width = base::dtype_bytes(dtype);
  if (!device_) {
    schedule.compute(
        [math = math_, copies = std::move(copies), dtype, factor, width](Schedule&) {
          for (const auto& c : copies)
            math->convert(address(c.dst), dtype, address(c.src), dtype, c.bytes / width, factor);
        },
        phase);
    return;
  }
  schedule.compute([device = device_, copies = std::move(copies), dtype, factor, width](Schedule&) {
    if (is_one(factor)) return device->copy(device->stream(), copies);
    std::vector<plugins::Device::ScaledCopy> scaled;
    for (const auto& c : copies) scaled.push_back({c.dst, c.src, c.bytes / width, dtype, factor});
    device->copy_scaled(device->stream(), scaled);
  });
}

void Packer::write_packed(Schedule& schedule, const plugins::Collective& c, uint64_t below, const hvd_buf& packed,
                          double pre, double post, const Emit& emit) const {
  const uint64_t width = base::dtype_bytes(c.dtype);
  plugins::Collective one(c.settings());
  one.in = one.out = {packed};
  one.counts = {packed.bytes / width};
  ByteList in, out;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width;
    if (bytes >= below) {
      one.in.push_back(c.in[i]);
      one.out.push_back(c.out[i]);
      one.counts.push_back(c.counts[i]);
      continue;
    }
    in.add(part_of(c.in[i], 0, bytes));
    out.add(has_result(c, i, rank_) ? hvd_buf{nullptr, 0, bytes} : part_of(c.out[i], 0, bytes));
  }
  if (c.coll != HVD_BROADCAST || c.root == rank_) copy(schedule, in.pack(packed), c.dtype, pre, kIn);
  emit(one);
  if (c.coll != HVD_REDUCE || c.root == rank_) copy(schedule, out.unpack(packed), c.dtype, post, kOut);
}

void Packer::write_moved(Schedule& schedule, const plugins::Collective& c, uint64_t alignment, double pre, double post,
                         const Emit& emit) const {
  const bool all = !is_one(pre) || !is_one(post);
  if (!all && all_aligned(c, alignment)) return emit(c);
  Relocated moved = relocate(
      c, rank_, size_, [&](uint64_t bytes) { return scratch(schedule, bytes, alignment); },
      [&](const hvd_buf& b) { return all || misaligned(b, alignment); });
  copy(schedule, std::move(moved.before), c.dtype, pre);
  emit(moved.c);
  copy(schedule, std::move(moved.after), c.dtype, post);
}

void Packer::write_scaled(Schedule& schedule, const plugins::Collective& c, uint32_t factors, const Emit& emit) const {
  const uint64_t width = base::dtype_bytes(c.dtype);
  plugins::Collective s = c;
  s.prescale = s.postscale = 1.0;
  Copies before, after;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width, result = out_elements(c, i, rank_, size_) * width;
    if (bytes && (factors & Abilities::kPrescale)) {
      s.in[i] = c.coll == HVD_ALLREDUCE ? c.out[i] : scratch(schedule, bytes, 1);
      before.push_back({s.in[i], c.in[i], bytes});
    }
    if (result && (factors & Abilities::kPostscale)) after.push_back({c.out[i], c.out[i], result});
  }
  copy(schedule, std::move(before), c.dtype, c.prescale, kIn);
  emit(s);
  copy(schedule, std::move(after), c.dtype, c.postscale, kOut);
}

bool Packer::exceeds(const plugins::Collective& c, uint64_t max_count) const {
  if (c.coll == HVD_ALLTOALL || max_count == UINT64_MAX) return false;
  for (size_t i = 0; i < c.counts.size(); ++i)
    if ((c.coll == HVD_ALLGATHER ? out_elements(c, i, rank_, size_) : c.counts[i]) > max_count) return true;
  return false;
}

void Packer::write_split(Schedule& schedule, const plugins::Collective& c, uint64_t max_count, uint64_t alignment,
                         const Emit& emit) const {
  if (c.coll == HVD_ALLGATHER || c.coll == HVD_REDUCESCATTER)
    return write_slices(schedule, c, max_count, alignment, emit);
  const uint64_t width = base::dtype_bytes(c.dtype);
  // A multiple of the alignment, so that each part is aligned if the buffer is.
  const uint64_t unit = std::max<uint64_t>(1, alignment / width);
  const uint64_t most = max_count < unit ? max_count : max_count / unit * unit;
  for (uint64_t at = 0; at < c.counts[0]; at += most)
    write_moved(schedule, elements_of(c, at, most), alignment, 1.0, 1.0, emit);
}

// ALLGATHER, REDUCESCATTER: each call has the next few elements of every rank's part.
void Packer::write_slices(Schedule& schedule, const plugins::Collective& c, uint64_t max_count, uint64_t alignment,
                          const Emit& emit) const {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size_), me = static_cast<size_t>(rank_);
  const bool gathers = c.coll == HVD_ALLGATHER, in_place = same_place(c.in[0], c.out[0]);
  const uint64_t slice = std::max<uint64_t>(1, max_count / ranks);
  std::vector<uint64_t> parts, starts;  // elements
  uint64_t total = 0, longest = 0;
  for (size_t r = 0; r < ranks; ++r) {
    parts.push_back(out_part(c, 0, static_cast<int32_t>(r), size_));
    starts.push_back(total);
    total += parts.back();
    longest = std::max(longest, parts.back());
  }
  const uint64_t own_bytes = parts[me] * width;
  const hvd_buf packed = scratch(schedule, slice * ranks * width, alignment);
  const hvd_buf& whole = gathers ? c.out[0] : c.in[0];
  hvd_buf own = gathers ? c.in[0] : c.out[0];
  if (in_place && gathers) own = part_of(own, starts[me] * width, own_bytes);
  // In place, the results of early calls would overwrite the input of later ones.
  if (in_place && !gathers) own = scratch(schedule, own_bytes, alignment);
  plugins::Collective one = c;
  for (uint64_t at = 0; at < longest; at += slice) {
    const auto this_time = [&](size_t r) { return at < parts[r] ? std::min(slice, parts[r] - at) : 0; };
    ByteList places;
    for (size_t r = 0; r < ranks; ++r) {
      if (!one.out_counts.empty()) one.out_counts[r] = this_time(r);
      places.add(part_of(whole, (starts[r] + at) * width, this_time(r) * width));
    }
    const hvd_buf all = part_of(packed, 0, places.bytes()), mine = part_of(own, at * width, this_time(me) * width);
    one.in[0] = gathers ? mine : all;
    one.out[0] = gathers ? all : mine;
    one.counts[0] = one.in[0].bytes / width;
    if (!gathers) copy(schedule, places.pack(packed), c.dtype);
    write_moved(schedule, one, alignment, 1.0, 1.0, emit);
    if (gathers) copy(schedule, places.unpack(packed), c.dtype);
  }
  if (in_place && !gathers && own_bytes) copy(schedule, {{part_of(c.out[0], 0, own_bytes), own, own_bytes}}, c.dtype);
}

}  // namespace hvd::dataplane
