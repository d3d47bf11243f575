// Broadcast, allgather and alltoall from other types and other collectives. See emulated.h.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "engine/data/aligned.h"
#include "engine/data/emulated.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"
#include "engine/types/sizes.h"

namespace hvd::data {

namespace {

// A size that another rank has announced, and that sums and rounds are computed from.
void check_announced(size_t rank, uint64_t bytes) {
  if (bytes <= types::kMostBytes) return;
  throw plugin::BackendError(HVD_E_INVALID, 0, 0,
                             "alltoall: rank " + std::to_string(rank) + " announced a part of " +
                                 std::to_string(bytes) + " bytes, more than an address space has place for");
}

// Writes round(schedule, at) for at = 0, step, 2 * step and so on below `end`, each when the one before is complete:
// the number of rounds follows from what other ranks have announced.
using Round = std::function<void(Schedule&, uint64_t at)>;
void write_rounds(Schedule& schedule, uint64_t at, uint64_t end, uint64_t step, std::shared_ptr<const Round> round) {
  if (at >= end) return;
  (*round)(schedule, at);
  schedule.compute([=](Schedule& p) { write_rounds(p, at + step, end, step, round); });
}

uint64_t ceil_div(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit; }

bool aligned(const char* p, uint64_t width) { return reinterpret_cast<uintptr_t>(p) % width == 0; }

hvd_buf part_or_null(const hvd_buf& b, uint64_t skip, uint64_t bytes) {
  return b.base == nullptr ? hvd_buf{} : part_of(b, skip, bytes);
}

// The address of consecutive slices if they lie in one block that the carrier accepts; null if they have to be packed.
template <class Slice>
char* contiguous_slices(const std::vector<Slice>& slices, bool same_type, uint64_t width) {
  uint64_t total = 0;
  for (const Slice& s : slices) {
    if (s.bytes % width || s.list != slices[0].list || s.at != slices[0].at + total) return nullptr;
    total += s.bytes;
  }
  char* p = total ? slices[0].list->contiguous(slices[0].at, total) : nullptr;
  return p && (same_type || aligned(p, width)) ? p : nullptr;
}

}  // namespace

char* EmulatedTransport::Scratch::at_least(Schedule& schedule, uint64_t n) {
  if (p == nullptr || bytes < n) {
    p = schedule.scratch(n);
    bytes = n;
  }
  return p;
}

EmulatedTransport::Blocks EmulatedTransport::gather(Schedule& schedule, const plugin::Collective& c, int32_t dtype,
                                                    const Slice& mine, const Sizes& bytes, Scratch& in, Scratch& out) {
  const Carrier carrier = compositions_.carrier(HVD_ALLGATHER, dtype);
  const uint64_t w = carrier.width;
  Sizes units;
  for (uint64_t n : bytes) units.push_back(ceil_div(n, w));
  const uint64_t longest = *std::max_element(units.begin(), units.end());
  if (!carrier.varying) std::fill(units.begin(), units.end(), longest);
  uint64_t total = 0;
  for (uint64_t n : units) total += n;
  char* const all = out.at_least(schedule, total * w);
  Blocks blocks;
  char* p = all;
  for (uint64_t n : units) {
    blocks.push_back(p);
    p += n * w;
  }
  if (total == 0) return blocks;
  const uint64_t own = units[static_cast<size_t>(rank())];
  char* from = mine.bytes == own * w && own ? mine.list->contiguous(mine.at, mine.bytes) : nullptr;
  if (from && dtype != carrier.dtype && !aligned(from, w)) from = nullptr;
  if (!from) {
    from = in.at_least(schedule, own * w);
    if (mine.bytes) schedule.compute([mine, from](Schedule&) { mine.list->read(mine.at, mine.bytes, from); });
  }
  plugin::Collective s = settings(c, HVD_ALLGATHER, carrier.dtype);
  s.in = {{from, 0, own * w}};
  s.out = {{all, 0, total * w}};
  s.counts = {own};
  if (carrier.varying) s.out_counts = units;
  inner_.write_steps(schedule, s);
  return blocks;
}

EmulatedTransport::Blocks EmulatedTransport::exchange(Schedule& schedule, const plugin::Collective& c, int32_t dtype,
                                                      const std::vector<Slice>& to, const Sizes& from, Scratch& in,
                                                      Scratch& out) {
  const Carrier carrier = compositions_.carrier(HVD_ALLTOALL, dtype);
  const uint64_t w = carrier.width;
  plugin::Collective s = settings(c, HVD_ALLTOALL, carrier.dtype);
  uint64_t sent = 0, received = 0;
  for (const Slice& slice : to) sent += s.in_counts.emplace_back(ceil_div(slice.bytes, w));
  for (uint64_t n : from) received += s.out_counts.emplace_back(ceil_div(n, w));
  char* source = contiguous_slices(to, carrier.dtype == dtype, w);
  if (!source) {
    source = in.at_least(schedule, sent * w);
    schedule.compute([to, source, w](Schedule&) {
      char* p = source;
      for (const Slice& slice : to) {
        if (slice.bytes) slice.list->read(slice.at, slice.bytes, p);
        p += ceil_div(slice.bytes, w) * w;
      }
    });
  }
  char* const target = out.at_least(schedule, received * w);
  s.in = {{source, 0, sent * w}};
  s.out = {{target, 0, received * w}};
  s.counts = {sent};
  Blocks blocks;
  char* p = target;
  for (uint64_t n : s.out_counts) {
    blocks.push_back(p);
    p += n * w;
  }
  inner_.write_steps(schedule, s);
  return blocks;
}

// Broadcasts whole carrier elements in place. The remaining bytes at the ends of the buffers are packed into one more
// buffer.
void EmulatedTransport::broadcast_bytes(Schedule& schedule, const plugin::Collective& c) {
  const Carrier carrier = compositions_.carrier(HVD_BROADCAST, c.dtype);
  const uint64_t width = types::dtype_bytes(c.dtype), w = carrier.width;
  plugin::Collective s = settings(c, HVD_BROADCAST, carrier.dtype);
  ByteList in_tails, out_tails;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width, body = bytes / w * w, tail = bytes - body;
    if (body) {
      s.in.push_back(part_or_null(c.in[i], 0, body));
      s.out.push_back(part_or_null(c.out[i], 0, body));
      s.counts.push_back(body / w);
    }
    if (!tail) continue;
    in_tails.add(address(c.in[i]) + body, tail);
    if (c.out[i].base) out_tails.add(address(c.out[i]) + body, tail);
  }
  const uint64_t tails = in_tails.bytes();
  char* packed = nullptr;
  if (tails) {
    packed = schedule.scratch(ceil_div(tails, w) * w);
    if (c.root == rank()) schedule.compute([in_tails, tails, packed](Schedule&) { in_tails.read(0, tails, packed); });
    s.in.push_back({packed, 0, ceil_div(tails, w) * w});
    s.out.push_back(s.in.back());
    s.counts.push_back(ceil_div(tails, w));
  }
  if (s.counts.empty()) return;
  write_aligned(schedule, s, static_cast<uint32_t>(w), rank(), size(),
                [&](const plugin::Collective& moved) { inner_.write_steps(schedule, moved); });
  if (out_tails.bytes())
    schedule.compute([out_tails, packed](Schedule&) { out_tails.write(0, out_tails.bytes(), packed); });
}

// An allgather to which only the root contributes bytes.
void EmulatedTransport::broadcast_gathered(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  auto in = std::make_shared<ByteList>(), out = std::make_shared<ByteList>();
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.root == rank()) in->add(address(c.in[i]), c.counts[i] * width);
    if (c.out[i].base) out->add(address(c.out[i]), c.counts[i] * width);
  }
  const bool wants = out->bytes() > 0 && (c.root != rank() || c.in[0].base != c.out[0].base);
  uint64_t total = 0;
  for (uint64_t n : c.counts) total += n * width;
  Scratch from, to;
  const uint64_t chunk = std::max<uint64_t>(64, scratch_limit(c) / 64 * 64);
  for (uint64_t at = 0; at < total; at += chunk) {
    const uint64_t n = std::min(chunk, total - at);
    Sizes bytes(static_cast<size_t>(size()), 0);
    bytes[static_cast<size_t>(c.root)] = n;
    const Slice mine{in, at, c.root == rank() ? n : 0};
    const Blocks blocks = gather(schedule, c, c.dtype, mine, bytes, from, to);
    if (!wants) continue;
    schedule.compute([out, at, n, p = blocks[static_cast<size_t>(c.root)]](Schedule&) { out->write(at, n, p); });
  }
}

void EmulatedTransport::allgather(Schedule& schedule, const plugin::Collective& c) {
  const Carrier carrier = compositions_.carrier(HVD_ALLGATHER, c.dtype);
  const uint64_t width = types::dtype_bytes(c.dtype), w = carrier.width;
  const auto ranks = static_cast<size_t>(size());
  // By rank: the places of its parts of all buffers in the output.
  std::vector<ByteList> parts(ranks);
  auto mine = std::make_shared<ByteList>();
  bool whole = carrier.varying;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    char* at = address(c.out[i]);
    for (size_t r = 0; r < ranks; ++r) {
      const uint64_t bytes = out_part(c, i, static_cast<int32_t>(r), size()) * width;
      whole = whole && bytes % w == 0;
      if (static_cast<int32_t>(r) == rank()) {
        const bool in_place = address(c.in[i]) == address(c.out[i]);
        mine->add(in_place ? at : address(c.in[i]), bytes);
      }
      parts[r].add(at, bytes);
      at += bytes;
    }
  }
  if (whole) {
    plugin::Collective s = settings(c, HVD_ALLGATHER, carrier.dtype);
    s.in = c.in;
    s.out = c.out;
    for (size_t i = 0; i < c.counts.size(); ++i) {
      s.counts.push_back(c.counts[i] * width / w);
      for (int32_t r = 0; r < size(); ++r) s.out_counts.push_back(out_part(c, i, r, size()) * width / w);
    }
    write_aligned(schedule, s, carrier.dtype == c.dtype ? 1 : static_cast<uint32_t>(w), rank(), size(),
                  [&](const plugin::Collective& moved) { inner_.write_steps(schedule, moved); });
    return;
  }
  // All buffers at once, packed.
  Sizes bytes;
  for (const ByteList& part : parts) bytes.push_back(part.bytes());
  Scratch in, out;
  const Blocks blocks = gather(schedule, c, c.dtype, {mine, 0, mine->bytes()}, bytes, in, out);
  schedule.compute([blocks, parts = std::move(parts)](Schedule&) {
    for (size_t r = 0; r < parts.size(); ++r) parts[r].write(0, parts[r].bytes(), blocks[r]);
  });
}

void EmulatedTransport::alltoall(Schedule& schedule, const plugin::Collective& c, bool gathered) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size());
  std::vector<std::shared_ptr<ByteList>> to, from;
  for (size_t r = 0; r < ranks; ++r) {
    to.push_back(std::make_shared<ByteList>());
    from.push_back(std::make_shared<ByteList>());
  }
  const Carrier carrier = gathered ? Carrier{} : compositions_.carrier(HVD_ALLTOALL, c.dtype);
  const uint64_t limit =
      gathered ? UINT64_MAX : compositions_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  bool whole = !gathered && c.counts.size() == 1 && limit == UINT64_MAX;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t all = c.counts[i] * width;
    char* source = address(c.in[i]);
    if (source == address(c.out[i]) && all > 0) {
      // Results in place would overwrite data that is still to be sent.
      char* const copy = schedule.scratch(all);
      schedule.compute([copy, source, all](Schedule&) { std::memcpy(copy, source, all); });
      source = copy;
      whole = false;
    }
    char* target = address(c.out[i]);
    for (size_t r = 0; r < ranks; ++r) {
      const uint64_t give = in_part(c, i, static_cast<int32_t>(r), size()) * width;
      const uint64_t get = out_part(c, i, static_cast<int32_t>(r), size()) * width;
      whole = whole && give % carrier.width == 0 && get % carrier.width == 0;
      to[r]->add(source, give);
      from[r]->add(target, get);
      source += give;
      target += get;
    }
  }
  if (whole) {
    plugin::Collective s = settings(c, HVD_ALLTOALL, carrier.dtype);
    s.in = c.in;
    s.out = c.out;
    s.counts = {c.counts[0] * width / carrier.width};
    for (size_t r = 0; r < ranks; ++r) {
      s.in_counts.push_back(to[r]->bytes() / carrier.width);
      s.out_counts.push_back(from[r]->bytes() / carrier.width);
    }
    write_aligned(schedule, s, carrier.dtype == c.dtype ? 1 : static_cast<uint32_t>(carrier.width), rank(), size(),
                  [&](const plugin::Collective& moved) { inner_.write_steps(schedule, moved); });
    return;
  }
  std::vector<Slice> slices;
  Sizes bytes;
  for (size_t r = 0; r < ranks; ++r) {
    slices.push_back({to[r], 0, to[r]->bytes()});
    bytes.push_back(from[r]->bytes());
  }
  std::vector<std::shared_ptr<const ByteList>> targets(from.begin(), from.end());
  if (gathered) return alltoall_gathered(schedule, c, slices, std::move(targets));
  if (limit != UINT64_MAX) return alltoall_rounds(schedule, c, slices, std::move(targets), carrier.width, limit);
  Scratch in, out;
  const Blocks blocks = exchange(schedule, c, c.dtype, slices, bytes, in, out);
  schedule.compute([blocks, targets](Schedule&) {
    for (size_t r = 0; r < targets.size(); ++r) targets[r]->write(0, targets[r]->bytes(), blocks[r]);
  });
}

// Only pairs of ranks know the sizes of their parts, so all ranks first agree on the number of rounds.
void EmulatedTransport::alltoall_rounds(Schedule& schedule, const plugin::Collective& c, const std::vector<Slice>& to,
                                        std::vector<std::shared_ptr<const ByteList>> from, uint64_t unit,
                                        uint64_t max_count) {
  auto* const longest = schedule.scratch_array<uint64_t>(1);
  *longest = 0;
  for (const Slice& s : to) *longest = std::max(*longest, s.bytes);
  auto word = std::make_shared<ByteList>();
  word->add(reinterpret_cast<char*>(longest), sizeof *longest);
  Scratch in, out;
  const Blocks sizes = gather(schedule, c, HVD_UINT64, {word, 0, sizeof *longest},
                              Sizes(static_cast<size_t>(size()), sizeof *longest), in, out);
  const uint64_t slice =
      std::clamp<uint64_t>(max_count / static_cast<uint64_t>(size()), 1, types::kMostBytes / unit) * unit;
  schedule.compute([this, c = settings(c, c.coll, c.dtype), to, from = std::move(from), sizes, slice](Schedule& p) {
    uint64_t most = 0;
    for (size_t r = 0; r < sizes.size(); ++r) {
      uint64_t n;
      std::memcpy(&n, sizes[r], sizeof n);
      check_announced(r, n);
      most = std::max(most, n);
    }
    Scratch round_in, round_out;
    const auto round = [=, this](Schedule& q, uint64_t at) mutable {
      std::vector<Slice> give;
      Sizes get;
      const auto this_round = [&](uint64_t bytes) { return at < bytes ? std::min(slice, bytes - at) : 0; };
      for (const Slice& s : to) give.push_back({s.list, at, this_round(s.bytes)});
      for (const auto& list : from) get.push_back(this_round(list->bytes()));
      const Blocks blocks = exchange(q, c, c.dtype, give, get, round_in, round_out);
      q.compute([blocks, from, get, at](Schedule&) {
        for (size_t r = 0; r < from.size(); ++r) from[r]->write(at, get[r], blocks[r]);
      });
    };
    write_rounds(p, 0, most, slice, std::make_shared<const Round>(round));
  });
}

// Every rank gathers all data, a chunk at a time, and takes the part for itself.
void EmulatedTransport::alltoall_gathered(Schedule& schedule, const plugin::Collective& c, const std::vector<Slice>& to,
                                          std::vector<std::shared_ptr<const ByteList>> from) {
  const auto ranks = static_cast<size_t>(size());
  auto* const row = schedule.scratch_array<uint64_t>(ranks);
  auto all = std::make_shared<ByteList>();
  for (size_t r = 0; r < ranks; ++r) {
    row[r] = to[r].bytes;
    to[r].list->walk(0, to[r].bytes, [&](char* p, uint64_t, uint64_t n) { all->add(p, n); });
  }
  auto words = std::make_shared<ByteList>();
  words->add(reinterpret_cast<char*>(row), ranks * sizeof *row);
  Scratch in, out;
  const Blocks table =
      gather(schedule, c, HVD_UINT64, {words, 0, words->bytes()}, Sizes(ranks, words->bytes()), in, out);
  const uint64_t chunk = std::max<uint64_t>(64, scratch_limit(c) / ranks / 64 * 64);
  schedule.compute(
      [this, c = settings(c, c.coll, c.dtype), all, from = std::move(from), table, chunk, ranks](Schedule& p) {
        const auto me = static_cast<size_t>(rank());
        Sizes totals(ranks, 0), starts(ranks, 0);  // bytes that rank r sends; where this rank's part of them starts
        for (size_t r = 0; r < ranks; ++r) {
          for (size_t d = 0; d < ranks; ++d) {
            uint64_t n;
            std::memcpy(&n, table[r] + d * sizeof n, sizeof n);
            check_announced(r, n);
            if (d < me) starts[r] += n;
            if (d == me && n != from[r]->bytes())
              throw plugin::BackendError(HVD_E_INVALID, 0, 0,
                                         "alltoall: rank " + std::to_string(r) + " sends " + std::to_string(n) +
                                             " bytes, this rank (" + std::to_string(me) + ") expects " +
                                             std::to_string(from[r]->bytes()));
            totals[r] += n;
          }
        }
        const uint64_t most = *std::max_element(totals.begin(), totals.end());
        Scratch round_in, round_out;
        const auto round = [=, this](Schedule& q, uint64_t at) mutable {
          Sizes bytes;
          for (uint64_t n : totals) bytes.push_back(at < n ? std::min(chunk, n - at) : 0);
          const Blocks blocks = gather(q, c, c.dtype, {all, at, bytes[me]}, bytes, round_in, round_out);
          q.compute([blocks, bytes, from, starts, at](Schedule&) {
            for (size_t r = 0; r < from.size(); ++r) {
              const uint64_t begin = std::max(at, starts[r]);
              const uint64_t end = std::min(at + bytes[r], starts[r] + from[r]->bytes());
              if (begin < end) from[r]->write(begin - starts[r], end - begin, blocks[r] + (begin - at));
            }
          });
        };
        write_rounds(p, 0, most, chunk, std::make_shared<const Round>(round));
      });
}

}  // namespace hvd::data
