// See staged.h.
#include "engine/data/staged.h"

#include <algorithm>
#include <utility>

#include "engine/control/signature.h"
#include "engine/data/parts.h"

namespace hvd::data {

namespace {

bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

// The copies between [at, at + bytes) of a list of device buffers, seen as one run, and contiguous host memory.
std::vector<DeviceQueue::Copy> copies(const std::vector<hvd_buf>& device, const std::vector<uint64_t>& sizes,
                                      uint64_t at, uint64_t bytes, const hvd_buf& host, bool to_host) {
  std::vector<DeviceQueue::Copy> list;
  uint64_t start = 0;
  for (size_t i = 0; i < device.size() && start < at + bytes; start += sizes[i++]) {
    const uint64_t first = std::max(at, start), last = std::min(at + bytes, start + sizes[i]);
    if (first >= last || !device[i].base) continue;  // a broadcast's root may have no place for the result
    const hvd_buf there = part_of(device[i], first - start, last - first);
    const hvd_buf here = part_of(host, first - at, last - first);
    list.push_back(to_host ? DeviceQueue::Copy{here, there, last - first}
                           : DeviceQueue::Copy{there, here, last - first});
  }
  return list;
}

}  // namespace

// What the steps of one chunked collective share.
struct StagedTransport::Pipeline {
  plugin::Collective c;
  std::vector<uint64_t> sizes;  // bytes by buffer
  uint64_t total = 0, chunk = 0;
  bool reads = false, writes = false;
  hvd_buf area{};

  uint64_t bytes(uint64_t k) const { return std::min(chunk, total - k * chunk); }
  uint64_t chunks() const { return (total + chunk - 1) / chunk; }
  hvd_buf slot(uint64_t k) const { return part_of(area, (k % DeviceQueue::kMarks) * chunk, bytes(k)); }
};

StagedTransport::StagedTransport(Transport& inner, std::shared_ptr<plugin::Backend> backend, hvd_device device,
                                 uint64_t chunk_bytes)
    : inner_(inner), queue_(std::move(backend), device), chunk_bytes_(chunk_bytes) {}

void StagedTransport::plan(Program& program, const plugin::Collective& c) {
  if (c.counts.empty()) return inner_.plan(program, c);
  // When it is this collective's turn: then the pinned memory is free to be used, or to be replaced by more.
  program.compute([this, c](Program& p) {
    p.at_settle([this, stream = c.stream](int64_t deadline_ns) { queue_.drain(stream, deadline_ns); });
    if (c.coll == HVD_ALLREDUCE || c.coll == HVD_REDUCE || c.coll == HVD_BROADCAST)
      plan_chunks(p, c);
    else
      plan_whole(p, c);
  });
}

void StagedTransport::await(Program& program, size_t mark) {
  program.poll([this, mark] { return queue_.reached(mark); },
               [this, mark](int64_t deadline_ns) { queue_.wait(mark, deadline_ns); });
}

// Chunk k uses slot k % 2. Its slot is free, and its data are there, when the mark of that name has been reached: it is
// made when chunk k - 2 has been sent back and chunk k has been asked for.
void StagedTransport::plan_chunks(Program& program, const plugin::Collective& c) {
  const uint64_t width = control::dtype_bytes(c.dtype);
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
  all->area = queue_.pinned(std::min<uint64_t>(DeviceQueue::kMarks, all->chunks()) * all->chunk);
  const auto fetch = [this](const Pipeline& x, uint64_t k) {
    if (k >= x.chunks()) return;
    if (x.reads) queue_.copy(x.c.stream, copies(x.c.in, x.sizes, k * x.chunk, x.bytes(k), x.slot(k), true));
    queue_.mark(x.c.stream, k % DeviceQueue::kMarks);
  };
  for (uint64_t k = 0; k < DeviceQueue::kMarks; ++k) fetch(*all, k);
  for (uint64_t k = 0; k < all->chunks(); ++k) {
    await(program, k % DeviceQueue::kMarks);
    plugin::Collective one;
    copy_settings(one, c);
    one.stream = nullptr;
    one.in = one.out = {all->slot(k)};
    one.counts = {all->bytes(k) / width};
    inner_.plan(program, one);
    program.compute([this, all, fetch, k](Program&) {
      const Pipeline& x = *all;
      if (x.writes) queue_.copy(x.c.stream, copies(x.c.out, x.sizes, k * x.chunk, x.bytes(k), x.slot(k), false));
      if (k + DeviceQueue::kMarks < x.chunks())
        fetch(x, k + DeviceQueue::kMarks);
      else
        queue_.mark(x.c.stream, k % DeviceQueue::kMarks);
    });
  }
  for (size_t mark = 0; mark < DeviceQueue::kMarks; ++mark) await(program, mark);
}

void StagedTransport::plan_whole(Program& program, const plugin::Collective& c) {
  const uint64_t width = control::dtype_bytes(c.dtype);
  const auto up = [](uint64_t n) { return (n + 63) / 64 * 64; };
  plugin::Collective one = c;
  one.stream = nullptr;
  uint64_t room = 0;
  std::vector<uint64_t> in, out;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    room += up(in.emplace_back(in_elements(c, i, rank()) * width));
    room += up(out.emplace_back(out_elements(c, i, rank(), size()) * width));
  }
  const hvd_buf area = queue_.pinned(room);
  std::vector<DeviceQueue::Copy> before, after;
  uint64_t at = 0;
  const auto place = [&](uint64_t bytes) {
    const hvd_buf b = part_of(area, at, bytes);
    at += up(bytes);
    return b;
  };
  for (size_t i = 0; i < c.counts.size(); ++i) {
    // In place, an allgather finds this rank's part where it will stand in the end.
    uint64_t skip = 0;
    if (c.coll == HVD_ALLGATHER && same_place(c.in[i], c.out[i]))
      for (int32_t r = 0; r < rank(); ++r) skip += out_part(c, i, r, size()) * width;
    one.in[i] = place(in[i]);
    one.out[i] = place(out[i]);
    if (in[i]) before.push_back({one.in[i], part_of(c.in[i], skip, in[i]), in[i]});
    if (out[i]) after.push_back({part_of(c.out[i], 0, out[i]), one.out[i], out[i]});
  }
  if (!before.empty()) {
    queue_.copy(c.stream, before);
    queue_.mark(c.stream, 0);
    await(program, 0);
  }
  inner_.plan(program, one);
  if (after.empty()) return;
  program.compute([this, after, stream = c.stream](Program&) {
    queue_.copy(stream, after);
    queue_.mark(stream, 0);
  });
  await(program, 0);
}

}  // namespace hvd::data
