// Broadcast, allgather and alltoall from other types and other collectives. See emulated.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/data/aligned.h"
#include "engine/data/emulated.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

namespace {

uint64_t up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit; }

bool aligned(const char* p, uint64_t width) { return reinterpret_cast<uintptr_t>(p) % width == 0; }

hvd_buf piece(const hvd_buf& b, uint64_t skip, uint64_t bytes) {
  return b.base == nullptr ? hvd_buf{} : part_of(b, skip, bytes);
}

// One stretch of memory that holds consecutive slices as the carrier wants them; null when they have to be packed.
template <class Slice>
char* as_it_lies(const std::vector<Slice>& slices, bool same_type, uint64_t width) {
  uint64_t total = 0;
  for (const Slice& s : slices) {
    if (s.bytes % width || s.list != slices[0].list || s.at != slices[0].at + total) return nullptr;
    total += s.bytes;
  }
  char* p = total ? slices[0].list->contiguous(slices[0].at, total) : nullptr;
  return p && (same_type || aligned(p, width)) ? p : nullptr;
}

}  // namespace

char* EmulatedTransport::Room::at_least(Program& program, uint64_t n) {
  if (p == nullptr || bytes < n) {
    p = program.scratch(n);
    bytes = n;
  }
  return p;
}

EmulatedTransport::Blocks EmulatedTransport::gather(Program& program, const plugin::Collective& c, int32_t dtype,
                                                    const Slice& mine, const Sizes& bytes, Room& in, Room& out) {
  const Carrier carrier = routes_.carrier(HVD_ALLGATHER, dtype);
  const uint64_t w = carrier.width;
  Sizes units;
  for (uint64_t n : bytes) units.push_back(up(n, w));
  const uint64_t longest = *std::max_element(units.begin(), units.end());
  if (!carrier.varying) std::fill(units.begin(), units.end(), longest);
  uint64_t total = 0;
  for (uint64_t n : units) total += n;
  char* const all = out.at_least(program, total * w);
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
    from = in.at_least(program, own * w);
    if (mine.bytes) program.compute([mine, from](Program&) { mine.list->read(mine.at, mine.bytes, from); });
  }
  plugin::Collective s = settings(c, HVD_ALLGATHER, carrier.dtype);
  s.in = {{from, 0, own * w}};
  s.out = {{all, 0, total * w}};
  s.counts = {own};
  if (carrier.varying) s.out_counts = units;
  inner_.plan(program, s);
  return blocks;
}

EmulatedTransport::Blocks EmulatedTransport::exchange(Program& program, const plugin::Collective& c, int32_t dtype,
                                                      const std::vector<Slice>& to, const Sizes& from, Room& in,
                                                      Room& out) {
  const Carrier carrier = routes_.carrier(HVD_ALLTOALL, dtype);
  const uint64_t w = carrier.width;
  plugin::Collective s = settings(c, HVD_ALLTOALL, carrier.dtype);
  uint64_t sent = 0, received = 0;
  for (const Slice& slice : to) sent += s.in_counts.emplace_back(up(slice.bytes, w));
  for (uint64_t n : from) received += s.out_counts.emplace_back(up(n, w));
  char* source = as_it_lies(to, carrier.dtype == dtype, w);
  if (!source) {
    source = in.at_least(program, sent * w);
    program.compute([to, source, w](Program&) {
      char* p = source;
      for (const Slice& slice : to) {
        if (slice.bytes) slice.list->read(slice.at, slice.bytes, p);
        p += up(slice.bytes, w) * w;
      }
    });
  }
  char* const target = out.at_least(program, received * w);
  s.in = {{source, 0, sent * w}};
  s.out = {{target, 0, received * w}};
  s.counts = {sent};
  Blocks blocks;
  char* p = target;
  for (uint64_t n : s.out_counts) {
    blocks.push_back(p);
    p += n * w;
  }
  inner_.plan(program, s);
  return blocks;
}

// Whole carrier elements from where they lie; what is left at the ends of the buffers travels as one more buffer.
void EmulatedTransport::broadcast_bytes(Program& program, const plugin::Collective& c) {
  const Carrier carrier = routes_.carrier(HVD_BROADCAST, c.dtype);
  const uint64_t width = types::dtype_bytes(c.dtype), w = carrier.width;
  plugin::Collective s = settings(c, HVD_BROADCAST, carrier.dtype);
  ByteList in_tails, out_tails;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width, body = bytes / w * w, tail = bytes - body;
    if (body) {
      s.in.push_back(piece(c.in[i], 0, body));
      s.out.push_back(piece(c.out[i], 0, body));
      s.counts.push_back(body / w);
    }
    if (!tail) continue;
    in_tails.add(address(c.in[i]) + body, tail);
    if (c.out[i].base) out_tails.add(address(c.out[i]) + body, tail);
  }
  const uint64_t tails = in_tails.bytes();
  char* packed = nullptr;
  if (tails) {
    packed = program.scratch(up(tails, w) * w);
    if (c.root == rank()) program.compute([in_tails, tails, packed](Program&) { in_tails.read(0, tails, packed); });
    s.in.push_back({packed, 0, up(tails, w) * w});
    s.out.push_back(s.in.back());
    s.counts.push_back(up(tails, w));
  }
  if (s.counts.empty()) return;
  plan_aligned(program, s, static_cast<uint32_t>(w), rank(), size(),
               [&](const plugin::Collective& moved) { inner_.plan(program, moved); });
  if (out_tails.bytes())
    program.compute([out_tails, packed](Program&) { out_tails.write(0, out_tails.bytes(), packed); });
}

// An allgather to which only the root adds anything.
void EmulatedTransport::broadcast_gathered(Program& program, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  auto in = std::make_shared<ByteList>(), out = std::make_shared<ByteList>();
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.root == rank()) in->add(address(c.in[i]), c.counts[i] * width);
    if (c.out[i].base) out->add(address(c.out[i]), c.counts[i] * width);
  }
  const bool wants = out->bytes() > 0 && (c.root != rank() || c.in[0].base != c.out[0].base);
  uint64_t total = 0;
  for (uint64_t n : c.counts) total += n * width;
  Room from, to;
  const uint64_t chunk = std::max<uint64_t>(64, policy_.scratch_bytes / 64 * 64);
  for (uint64_t at = 0; at < total; at += chunk) {
    const uint64_t n = std::min(chunk, total - at);
    Sizes bytes(static_cast<size_t>(size()), 0);
    bytes[static_cast<size_t>(c.root)] = n;
    const Slice mine{in, at, c.root == rank() ? n : 0};
    const Blocks blocks = gather(program, c, c.dtype, mine, bytes, from, to);
    if (!wants) continue;
    program.compute([out, at, n, p = blocks[static_cast<size_t>(c.root)]](Program&) { out->write(at, n, p); });
  }
}

void EmulatedTransport::allgather(Program& program, const plugin::Collective& c) {
  const Carrier carrier = routes_.carrier(HVD_ALLGATHER, c.dtype);
  const uint64_t width = types::dtype_bytes(c.dtype), w = carrier.width;
  const auto ranks = static_cast<size_t>(size());
  // By rank: where its parts of all buffers belong.
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
    plan_aligned(program, s, carrier.dtype == c.dtype ? 1 : static_cast<uint32_t>(w), rank(), size(),
                 [&](const plugin::Collective& moved) { inner_.plan(program, moved); });
    return;
  }
  // All buffers at once, packed.
  Sizes bytes;
  for (const ByteList& part : parts) bytes.push_back(part.bytes());
  Room in, out;
  const Blocks blocks = gather(program, c, c.dtype, {mine, 0, mine->bytes()}, bytes, in, out);
  program.compute([blocks, parts = std::move(parts)](Program&) {
    for (size_t r = 0; r < parts.size(); ++r) parts[r].write(0, parts[r].bytes(), blocks[r]);
  });
}

void EmulatedTransport::alltoall(Program& program, const plugin::Collective& c, bool gathered) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size());
  std::vector<std::shared_ptr<ByteList>> to, from;
  for (size_t r = 0; r < ranks; ++r) {
    to.push_back(std::make_shared<ByteList>());
    from.push_back(std::make_shared<ByteList>());
  }
  const Carrier carrier = gathered ? Carrier{} : routes_.carrier(HVD_ALLTOALL, c.dtype);
  const uint64_t limit =
      gathered ? UINT64_MAX : routes_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  bool whole = !gathered && c.counts.size() == 1 && limit == UINT64_MAX;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t all = c.counts[i] * width;
    char* source = address(c.in[i]);
    if (source == address(c.out[i]) && all > 0) {
      // Results would overwrite what is still to be sent.
      char* const copy = program.scratch(all);
      program.compute([copy, source, all](Program&) { std::memcpy(copy, source, all); });
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
    plan_aligned(program, s, carrier.dtype == c.dtype ? 1 : static_cast<uint32_t>(carrier.width), rank(), size(),
                 [&](const plugin::Collective& moved) { inner_.plan(program, moved); });
    return;
  }
  std::vector<Slice> slices;
  Sizes bytes;
  for (size_t r = 0; r < ranks; ++r) {
    slices.push_back({to[r], 0, to[r]->bytes()});
    bytes.push_back(from[r]->bytes());
  }
  std::vector<std::shared_ptr<const ByteList>> targets(from.begin(), from.end());
  if (gathered) return alltoall_gathered(program, c, slices, std::move(targets));
  if (limit != UINT64_MAX) return alltoall_rounds(program, c, slices, std::move(targets), carrier.width, limit);
  Room in, out;
  const Blocks blocks = exchange(program, c, c.dtype, slices, bytes, in, out);
  program.compute([blocks, targets](Program&) {
    for (size_t r = 0; r < targets.size(); ++r) targets[r]->write(0, targets[r]->bytes(), blocks[r]);
  });
}

// The parts' sizes are known to pairs of ranks only, so first all ranks agree on the number of rounds.
void EmulatedTransport::alltoall_rounds(Program& program, const plugin::Collective& c, const std::vector<Slice>& to,
                                        std::vector<std::shared_ptr<const ByteList>> from, uint64_t unit,
                                        uint64_t max_count) {
  auto* const longest = program.scratch_array<uint64_t>(1);
  *longest = 0;
  for (const Slice& s : to) *longest = std::max(*longest, s.bytes);
  auto word = std::make_shared<ByteList>();
  word->add(reinterpret_cast<char*>(longest), sizeof *longest);
  Room in, out;
  const Blocks said = gather(program, c, HVD_UINT64, {word, 0, sizeof *longest},
                             Sizes(static_cast<size_t>(size()), sizeof *longest), in, out);
  const uint64_t slice = std::max<uint64_t>(1, max_count / static_cast<uint64_t>(size())) * unit;
  program.compute([this, c = settings(c, c.coll, c.dtype), to, from = std::move(from), said, slice](Program& p) {
    uint64_t most = 0;
    for (const char* word : said) {
      uint64_t n;
      std::memcpy(&n, word, sizeof n);
      most = std::max(most, n);
    }
    Room round_in, round_out;
    for (uint64_t at = 0; at < most; at += slice) {
      std::vector<Slice> give;
      Sizes get;
      const auto cut = [&](uint64_t bytes) { return at < bytes ? std::min(slice, bytes - at) : 0; };
      for (const Slice& s : to) give.push_back({s.list, at, cut(s.bytes)});
      for (const auto& list : from) get.push_back(cut(list->bytes()));
      const Blocks blocks = exchange(p, c, c.dtype, give, get, round_in, round_out);
      p.compute([blocks, from, get, at](Program&) {
        for (size_t r = 0; r < from.size(); ++r) from[r]->write(at, get[r], blocks[r]);
      });
    }
  });
}

// Everybody gathers everything, a bounded piece at a time, and takes what is meant for it.
void EmulatedTransport::alltoall_gathered(Program& program, const plugin::Collective& c, const std::vector<Slice>& to,
                                          std::vector<std::shared_ptr<const ByteList>> from) {
  const auto ranks = static_cast<size_t>(size());
  auto* const row = program.scratch_array<uint64_t>(ranks);
  auto all = std::make_shared<ByteList>();
  for (size_t r = 0; r < ranks; ++r) {
    row[r] = to[r].bytes;
    to[r].list->walk(0, to[r].bytes, [&](char* p, uint64_t, uint64_t n) { all->add(p, n); });
  }
  auto words = std::make_shared<ByteList>();
  words->add(reinterpret_cast<char*>(row), ranks * sizeof *row);
  Room in, out;
  const Blocks table =
      gather(program, c, HVD_UINT64, {words, 0, words->bytes()}, Sizes(ranks, words->bytes()), in, out);
  const uint64_t chunk = std::max<uint64_t>(64, policy_.scratch_bytes / ranks / 64 * 64);
  program.compute(
      [this, c = settings(c, c.coll, c.dtype), all, from = std::move(from), table, chunk, ranks](Program& p) {
        const auto me = static_cast<size_t>(rank());
        Sizes totals(ranks, 0), starts(ranks, 0);  // of what rank r sends; of my part of it
        for (size_t r = 0; r < ranks; ++r) {
          for (size_t d = 0; d < ranks; ++d) {
            uint64_t n;
            std::memcpy(&n, table[r] + d * sizeof n, sizeof n);
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
        Room round_in, round_out;
        for (uint64_t at = 0; at < most; at += chunk) {
          Sizes bytes;
          for (uint64_t n : totals) bytes.push_back(at < n ? std::min(chunk, n - at) : 0);
          const Blocks blocks = gather(p, c, c.dtype, {all, at, bytes[me]}, bytes, round_in, round_out);
          p.compute([blocks, bytes, from, starts, at](Program&) {
            for (size_t r = 0; r < from.size(); ++r) {
              const uint64_t begin = std::max(at, starts[r]);
              const uint64_t end = std::min(at + bytes[r], starts[r] + from[r]->bytes());
              if (begin < end) from[r]->write(begin - starts[r], end - begin, blocks[r] + (begin - at));
            }
          });
        }
      });
}

}  // namespace hvd::data
