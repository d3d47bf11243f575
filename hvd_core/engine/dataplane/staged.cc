// See staged.h.
#include "engine/dataplane/staged.h"

#include <algorithm>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/dataplane/packing.h"

namespace hvd::dataplane {

namespace {

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
  ByteList in, out;
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
    if (is_elementwise(c.coll) && chunk_bytes_)
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
  all->total = total_bytes(c);
  if (all->total == 0) return;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    all->in.add(part_of(c.in[i], 0, c.counts[i] * width));
    all->out.add(part_of(c.out[i], 0, c.counts[i] * width));
  }
  all->chunk = std::max<uint64_t>(1, std::min(chunk_bytes_, all->total) / width) * width;
  all->reads = c.coll != HVD_BROADCAST || c.root == rank();
  all->writes = c.coll != HVD_REDUCE || c.root == rank();
  if (c.coll == HVD_BROADCAST && c.root == rank()) {
    all->writes = false;
    for (size_t i = 0; i < c.out.size(); ++i)
      all->writes = all->writes || (c.out[i].base && !same_place(c.in[i], c.out[i]));
  }
  all->area = scratch_on(schedule, *device_, std::min<uint64_t>(kSlots, all->chunks()) * all->chunk, HVD_MEM_PINNED);
  for (auto& mark : all->marks) mark = std::make_shared<plugins::MarkRef>();
  const auto record = [this](const Pipeline& x, uint64_t k) { *x.marks[k % kSlots] = device_->mark(x.c.stream); };
  const auto fetch = [this, record](const Pipeline& x, uint64_t k) {
    if (k >= x.chunks()) return;
    if (x.reads) device_->copy(x.c.stream, x.in.part(k * x.chunk, x.chunk).pack(x.slot(k)));
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
      if (x.writes) device_->copy(x.c.stream, x.out.part(k * x.chunk, x.chunk).unpack(x.slot(k)));
      if (k + kSlots < x.chunks())
        fetch(x, k + kSlots);
      else
        record(x, k);
    });
  }
  for (const auto& mark : all->marks) await_mark(schedule, mark);
}

void StagedLowering::write_whole(Schedule& schedule, const plugins::Collective& c) {
  Relocated moved = relocate(c, rank(), size(),
                             [&](uint64_t bytes) { return scratch_on(schedule, *device_, bytes, HVD_MEM_PINNED); });
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
