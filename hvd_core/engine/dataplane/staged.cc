// See staged.h.
#include "engine/dataplane/staged.h"

#include <algorithm>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/dataplane/aligned.h"
#include "engine/dataplane/parts.h"

namespace hvd::dataplane {

namespace {

using Copies = std::vector<plugins::Device::Copy>;

// The copies between the bytes [at, at + bytes) of a list of device buffers, seen as one run, and contiguous host
// memory.
Copies copies(const std::vector<hvd_buf>& device, const std::vector<uint64_t>& sizes, uint64_t at, uint64_t bytes,
              const hvd_buf& host, bool to_host) {
  Copies list;
  uint64_t start = 0;
  for (size_t i = 0; i < device.size() && start < at + bytes; start += sizes[i++]) {
    const uint64_t first = std::max(at, start), last = std::min(at + bytes, start + sizes[i]);
    if (first >= last || !device[i].base) continue;  // the root of a broadcast may have no output
    const hvd_buf there = part_of(device[i], first - start, last - first);
    const hvd_buf here = part_of(host, first - at, last - first);
    list.push_back(to_host ? plugins::Device::Copy{here, there, last - first}
                           : plugins::Device::Copy{there, here, last - first});
  }
  return list;
}

void await_mark(Schedule& schedule, std::shared_ptr<plugins::MarkRef> mark) {
  schedule.poll([mark] { return !*mark || (*mark)->reached(); },
                [mark](int64_t deadline_ns) {
                  if (*mark) (*mark)->wait(deadline_ns);
                });
}

}  // namespace

void write_stream_wait(Schedule& schedule, std::shared_ptr<plugins::Device> device, hvd_stream stream) {
  auto mark = std::make_shared<plugins::MarkRef>();
  schedule.compute([device, stream, mark](Schedule&) { *mark = device->mark(stream ? stream : device->stream()); });
  await_mark(schedule, std::move(mark));
}

// The state that the steps of one chunked collective share.
struct StagedLowering::Pipeline {
  plugins::Collective c;
  std::vector<uint64_t> sizes;  // bytes by buffer
  uint64_t total = 0, chunk = 0;
  bool reads = false, writes = false;
  hvd_buf area{};
  std::array<std::shared_ptr<plugins::MarkRef>, kSlots> marks;

  uint64_t bytes(uint64_t k) const { return std::min(chunk, total - k * chunk); }
  uint64_t chunks() const { return (total + chunk - 1) / chunk; }
  hvd_buf slot(uint64_t k) const { return part_of(area, (k % kSlots) * chunk, bytes(k)); }
};

void StagedLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  if (c.counts.empty()) return inner_.write_steps(schedule, c);
  // In a computation, because earlier steps may still have to write the input.
  schedule.compute([this, c = plugins::Collective(c)](Schedule& p) mutable {
    if (!c.stream) c.stream = device_->stream();
    p.at_settle([device = device_, stream = c.stream](int64_t deadline_ns) { device->drain(stream, deadline_ns); });
    const bool whole = c.coll == HVD_ALLREDUCE || c.coll == HVD_REDUCE || c.coll == HVD_BROADCAST;
    if (whole && chunk_bytes_)
      write_in_chunks(p, c);
    else
      write_whole(p, c);
  });
}

// Chunk k uses slot k % 2. When the stream has reached the slot's mark, the slot holds the data of chunk k: the mark is
// recorded after the copy of chunk k - 2 to the device and the copy of chunk k from the device are enqueued.
void StagedLowering::write_in_chunks(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  auto all = std::make_shared<Pipeline>();
  all->c = c;
  for (uint64_t n : c.counts) all->total += all->sizes.emplace_back(n * width);
  if (all->total == 0) return;
  all->chunk = std::max<uint64_t>(1, std::min(chunk_bytes_, all->total) / width) * width;
  all->reads = c.coll != HVD_BROADCAST || c.root == rank();
  all->writes = c.coll != HVD_REDUCE || c.root == rank();
  if (c.coll == HVD_BROADCAST && c.root == rank()) {
    all->writes = false;
    for (size_t i = 0; i < c.out.size(); ++i)
      all->writes = all->writes || (c.out[i].base && !same_place(c.in[i], c.out[i]));
  }
  auto memory = device_->allocate(HVD_MEM_PINNED, std::min<uint64_t>(kSlots, all->chunks()) * all->chunk);
  all->area = memory->buf;
  schedule.keep(std::move(memory));
  for (auto& mark : all->marks) mark = std::make_shared<plugins::MarkRef>();
  const auto record = [this](const Pipeline& x, uint64_t k) { *x.marks[k % kSlots] = device_->mark(x.c.stream); };
  const auto fetch = [this, record](const Pipeline& x, uint64_t k) {
    if (k >= x.chunks()) return;
    if (x.reads) device_->copy(x.c.stream, copies(x.c.in, x.sizes, k * x.chunk, x.bytes(k), x.slot(k), true));
    record(x, k);
  };
  for (uint64_t k = 0; k < kSlots; ++k) fetch(*all, k);
  for (uint64_t k = 0; k < all->chunks(); ++k) {
    await_mark(schedule, all->marks[k % kSlots]);
    plugins::Collective one(c.settings());
    one.stream = nullptr;
    one.in = one.out = {all->slot(k)};
    one.counts = {all->bytes(k) / width};
    inner_.write_steps(schedule, one);
    schedule.compute([this, all, fetch, record, k](Schedule&) {
      const Pipeline& x = *all;
      if (x.writes) device_->copy(x.c.stream, copies(x.c.out, x.sizes, k * x.chunk, x.bytes(k), x.slot(k), false));
      if (k + kSlots < x.chunks())
        fetch(x, k + kSlots);
      else
        record(x, k);
    });
  }
  for (const auto& mark : all->marks) await_mark(schedule, mark);
}

void StagedLowering::write_whole(Schedule& schedule, const plugins::Collective& c) {
  Area area;
  relocate(c, rank(), size(), [&](uint64_t bytes) { return area.add(bytes); });
  auto memory = device_->allocate(HVD_MEM_PINNED, area.total());
  area.begin(memory->buf);
  schedule.keep(std::move(memory));
  Relocated moved = relocate(c, rank(), size(), [&](uint64_t bytes) { return area.place(bytes); });
  if (!moved.before.empty()) {
    device_->copy(c.stream, moved.before);
    write_stream_wait(schedule, device_, c.stream);
  }
  moved.c.stream = nullptr;
  inner_.write_steps(schedule, moved.c);
  if (moved.after.empty()) return;
  schedule.compute(
      [this, after = std::move(moved.after), stream = c.stream](Schedule&) { device_->copy(stream, after); });
  write_stream_wait(schedule, device_, c.stream);
}

}  // namespace hvd::dataplane
