// Reductions from other types, other operations and other collectives. See emulated.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/data/emulated.h"
#include "engine/data/host_copies.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"
#include "engine/types/reductions.h"

namespace hvd::data {

namespace {

// The place in the output of the bytes [begin, begin + bytes) of the reduced data.
struct Target {
  uint64_t begin, bytes;
  char* out;
};

std::shared_ptr<ByteList> list_of(const std::vector<hvd_buf>& buffers, const std::vector<uint64_t>& counts,
                                  uint64_t width) {
  auto list = std::make_shared<ByteList>();
  for (size_t i = 0; i < counts.size(); ++i)
    if (buffers[i].base) list->add(address(buffers[i]), counts[i] * width);
  return list;
}

// The bytes of one round: a multiple of 64 elements, so that slices divide evenly into elements of any carrier.
uint64_t round_bytes(uint64_t bytes, uint64_t width) {
  return std::max<uint64_t>(1, bytes / (64 * width)) * 64 * width;
}

}  // namespace

// The backend serves the collective itself. Factors that it does not apply are applied here, before and after it.
void EmulatedTransport::native(Schedule& schedule, const plugin::Collective& c) {
  const uint32_t factors = Abilities::factors_of(c);
  const bool varying = !c.out_counts.empty();
  if (factors == Abilities::kNone || compositions_.abilities().ask(c.coll, c.dtype, c.op, varying, factors).served ||
      !types::is_reducible(c.dtype, c.op)) {
    return inner_.write_steps(schedule, c);
  }
  plugin::Collective s = c;
  s.prescale = s.postscale = 1.0;
  if (factors & Abilities::kPrescale) {
    for (size_t i = 0; i < c.counts.size(); ++i)
      s.in[i] = c.coll == HVD_ALLREDUCE ? c.out[i] : schedule.scratch_buf(c.counts[i] * types::dtype_bytes(c.dtype));
    schedule.compute([this, from = c.in, to = s.in, counts = c.counts, dtype = c.dtype, pre = c.prescale](Schedule&) {
      for (size_t i = 0; i < counts.size(); ++i)
        math_.convert(address(to[i]), dtype, address(from[i]), dtype, counts[i], pre);
    });
  }
  inner_.write_steps(schedule, s);
  if (!(factors & Abilities::kPostscale)) return;
  std::vector<uint64_t> results;
  for (size_t i = 0; i < c.counts.size(); ++i) results.push_back(out_elements(c, i, rank(), size()));
  schedule.compute([this, out = c.out, results = std::move(results), dtype = c.dtype, post = c.postscale](Schedule&) {
    for (size_t i = 0; i < results.size(); ++i)
      math_.convert(address(out[i]), dtype, address(out[i]), dtype, results[i], post);
  });
}

// The division is the same on all ranks, so the results stay the same bits.
void EmulatedTransport::sum_and_divide(Schedule& schedule, const plugin::Collective& c) {
  plugin::Collective s = c;
  s.op = HVD_SUM;
  s.postscale = 1.0;
  native(schedule, s);
  schedule.compute([this, out = c.out, counts = c.counts, dtype = c.dtype, post = c.postscale](Schedule&) {
    for (size_t i = 0; i < counts.size(); ++i) {
      char* p = address(out[i]);
      math_.store_result(p, dtype, p, dtype, counts[i], static_cast<uint32_t>(size()), post);
    }
  });
}

void EmulatedTransport::widened(Schedule& schedule, const plugin::Collective& c) {
  const Widening wide = compositions_.widening(c.dtype, c.op);
  const uint64_t width = types::dtype_bytes(c.dtype), w = types::dtype_bytes(wide.dtype);
  const auto in = list_of(c.in, c.counts, width), out = list_of(c.out, c.counts, width);
  const uint64_t round = round_bytes(scratch_limit(c) / w * width, width);
  Scratch room;
  for (uint64_t at = 0; at < in->bytes(); at += round) {
    const uint64_t bytes = std::min(round, in->bytes() - at), n = bytes / width;
    char* const sums = room.at_least(schedule, n * w);
    schedule.compute(
        [this, in, at, bytes, sums, dtype = c.dtype, to = wide.dtype, width, w, pre = c.prescale](Schedule&) {
          in->walk(at, bytes, [&](const char* p, uint64_t offset, uint64_t k) {
            math_.load_partial(sums + offset / width * w, to, p, dtype, k / width, pre);
          });
        });
    plugin::Collective s = settings(c, HVD_ALLREDUCE, wide.dtype);
    s.op = wide.op;
    s.prescale = s.postscale = 1.0;
    s.in = s.out = {{sums, 0, n * w}};
    s.counts = {n};
    inner_.write_steps(schedule, s);
    if (out->bytes() == 0) continue;
    const uint32_t divisor = c.op == HVD_AVG ? static_cast<uint32_t>(size()) : 1;
    schedule.compute([this, out, at, bytes, sums, dtype = c.dtype, from = wide.dtype, width, w, divisor,
                      post = c.postscale](Schedule&) {
      out->walk(at, bytes, [&](char* p, uint64_t offset, uint64_t k) {
        math_.store_result(p, dtype, sums + offset / width * w, from, k / width, divisor, post);
      });
    });
  }
}

// ALLREDUCE and REDUCESCATTER: every rank gathers all data of a round and reduces the part that it needs.
void EmulatedTransport::gather_reduce(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto in = list_of(c.in, c.counts, width);
  auto targets = std::make_shared<std::vector<Target>>();
  uint64_t begin = 0;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    uint64_t skip = 0, bytes = c.counts[i] * width;
    if (c.coll == HVD_REDUCESCATTER) {
      for (int32_t r = 0; r < rank(); ++r) skip += out_part(c, i, r, size()) * width;
      bytes = out_part(c, i, rank(), size()) * width;
    }
    if (bytes && c.out[i].base) targets->push_back({begin + skip, bytes, address(c.out[i])});
    begin += c.counts[i] * width;
  }
  const uint64_t round = round_bytes(scratch_limit(c) / static_cast<uint64_t>(size()), width);
  Scratch from, to;
  for (uint64_t at = 0; at < in->bytes(); at += round) {
    const uint64_t bytes = std::min(round, in->bytes() - at);
    const Blocks blocks =
        gather(schedule, c, c.dtype, {in, at, bytes}, Sizes(static_cast<size_t>(size()), bytes), from, to);
    if (targets->empty()) continue;
    schedule.compute([this, blocks, targets, at, bytes, width, dtype = c.dtype, op = c.op, pre = c.prescale,
                      post = c.postscale](Schedule&) {
      std::vector<const void*> sources(blocks.size());
      for (const Target& t : *targets) {
        const uint64_t first = std::max(at, t.begin), last = std::min(at + bytes, t.begin + t.bytes);
        if (first >= last) continue;
        for (size_t r = 0; r < blocks.size(); ++r) sources[r] = blocks[r] + (first - at);
        math_.reduce_all(t.out + (first - t.begin), sources.data(), static_cast<uint32_t>(sources.size()),
                         (last - first) / width, dtype, op, pre, post);
      }
    });
  }
}

// The most bytes that one call of exchange() can move.
uint64_t EmulatedTransport::exchange_limit(int32_t dtype) {
  const Carrier carrier = compositions_.carrier(HVD_ALLTOALL, dtype);
  const uint64_t limit = compositions_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  // Half, because padding may add a little to each slice.
  return limit > UINT64_MAX / 16 ? UINT64_MAX : limit * carrier.width / 2;
}

// Every rank reduces one slice of each round, then all ranks gather the results.
void EmulatedTransport::exchange_reduce(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto ranks = static_cast<uint64_t>(size()), me = static_cast<uint64_t>(rank());
  const auto in = list_of(c.in, c.counts, width), out = list_of(c.out, c.counts, width);
  const uint64_t round = round_bytes(std::min(scratch_limit(c), exchange_limit(c.dtype)), width);
  Scratch from, to, results, mine, all;
  for (uint64_t at = 0; at < in->bytes(); at += round) {
    const uint64_t bytes = std::min(round, in->bytes() - at);
    const uint64_t slice = ((bytes / width + ranks - 1) / ranks + 63) / 64 * 64 * width;
    std::vector<Slice> give;
    Sizes sizes;
    for (uint64_t r = 0; r < ranks; ++r) {
      const uint64_t first = std::min(bytes, r * slice);
      sizes.push_back(std::min(bytes, (r + 1) * slice) - first);
      give.push_back({in, at + first, sizes.back()});
    }
    const uint64_t own = sizes[me];
    const Blocks blocks = exchange(schedule, c, c.dtype, give, Sizes(ranks, own), from, to);
    char* const result = results.at_least(schedule, own);
    if (own) {
      schedule.compute([this, blocks, result, n = own / width, dtype = c.dtype, op = c.op, pre = c.prescale,
                        post = c.postscale](Schedule&) {
        const std::vector<const void*> sources(blocks.begin(), blocks.end());
        math_.reduce_all(result, sources.data(), static_cast<uint32_t>(sources.size()), n, dtype, op, pre, post);
      });
    }
    auto result_list = std::make_shared<ByteList>();
    result_list->add(result, own);
    const Blocks parts = gather(schedule, c, c.dtype, {result_list, 0, own}, sizes, mine, all);
    if (out->bytes() == 0) continue;
    schedule.compute([parts, sizes, out, at, slice](Schedule&) {
      for (size_t r = 0; r < parts.size(); ++r)
        if (sizes[r]) out->write(at + r * slice, sizes[r], parts[r]);
    });
  }
}

void EmulatedTransport::exchange_reduce_scatter(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size());
  std::vector<std::shared_ptr<ByteList>> to;
  for (size_t r = 0; r < ranks; ++r) to.push_back(std::make_shared<ByteList>());
  auto out = std::make_shared<ByteList>();
  for (size_t i = 0; i < c.counts.size(); ++i) {
    char* at = address(c.in[i]);
    for (size_t r = 0; r < ranks; ++r) {
      const uint64_t bytes = out_part(c, i, static_cast<int32_t>(r), size()) * width;
      to[r]->add(at, bytes);
      at += bytes;
    }
    out->add(address(c.out[i]), out_part(c, i, rank(), size()) * width);
  }
  uint64_t longest = 0;
  for (const auto& list : to) longest = std::max(longest, list->bytes());
  const uint64_t round = round_bytes(std::min(scratch_limit(c), exchange_limit(c.dtype)) / ranks, width);
  Scratch room_in, room_out;
  for (uint64_t at = 0; at < longest; at += round) {
    std::vector<Slice> give;
    const auto this_round = [&](uint64_t bytes) { return at < bytes ? std::min(round, bytes - at) : 0; };
    for (const auto& list : to) give.push_back({list, at, this_round(list->bytes())});
    const uint64_t own = this_round(out->bytes());
    const Blocks blocks = exchange(schedule, c, c.dtype, give, Sizes(ranks, own), room_in, room_out);
    if (own == 0) continue;
    schedule.compute([this, blocks, out, at, own, width, dtype = c.dtype, op = c.op, pre = c.prescale,
                      post = c.postscale](Schedule&) {
      std::vector<const void*> sources(blocks.size());
      out->walk(at, own, [&](char* p, uint64_t offset, uint64_t bytes) {
        for (size_t r = 0; r < blocks.size(); ++r) sources[r] = blocks[r] + offset;
        math_.reduce_all(p, sources.data(), static_cast<uint32_t>(sources.size()), bytes / width, dtype, op, pre, post);
      });
    });
  }
}

void EmulatedTransport::reduce_through_allreduce(Schedule& schedule, const plugin::Collective& c) {
  plugin::Collective s = settings(c, HVD_ALLREDUCE, c.dtype);
  s.in = c.in;
  s.out = c.out;
  s.counts = c.counts;
  if (c.root != rank()) {
    uint64_t bytes = 0;
    for (uint64_t n : c.counts) bytes += n * types::dtype_bytes(c.dtype);
    const Composition below = compositions_.choose(HVD_ALLREDUCE, c.dtype, c.op, false, bytes);
    const bool writes = below == Composition::Native ||
                        below == Composition::SumAndDivide;  // the other compositions accept a null output
    for (size_t i = 0; i < c.counts.size(); ++i)
      s.out[i] = writes ? schedule.scratch_buf(c.counts[i] * types::dtype_bytes(c.dtype)) : hvd_buf{};
  }
  write_steps(schedule, s);
}

void EmulatedTransport::scatter_through_allreduce(Schedule& schedule, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  plugin::Collective s = settings(c, HVD_ALLREDUCE, c.dtype);
  s.in = c.in;
  s.counts = c.counts;
  for (uint64_t n : c.counts) s.out.push_back(schedule.scratch_buf(n * width));
  write_steps(schedule, s);
  HostCopies copies;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    uint64_t skip = 0;
    for (int32_t r = 0; r < rank(); ++r) skip += out_part(c, i, r, size()) * width;
    const uint64_t bytes = out_part(c, i, rank(), size()) * width;
    if (bytes) copies.add({address(c.out[i]), address(s.out[i]) + skip, bytes});
  }
  schedule.compute([copies = std::move(copies)](Schedule&) { copies.run(); });
}

void EmulatedTransport::barrier(Schedule& schedule, const plugin::Collective& c) {
  const int32_t dtype = compositions_.summed_dtype();
  if (dtype >= 0) {
    plugin::Collective s = settings(c, HVD_ALLREDUCE, dtype);
    const hvd_buf word = schedule.scratch_buf(types::dtype_bytes(dtype));
    std::memset(word.base, 0, word.bytes);
    s.op = HVD_SUM;
    s.prescale = s.postscale = 1.0;
    s.in = s.out = {word};
    s.counts = {1};
    return inner_.write_steps(schedule, s);
  }
  auto byte = std::make_shared<ByteList>();
  byte->add(schedule.scratch(1), 1);
  Scratch in, out;
  gather(schedule, c, HVD_UINT8, {byte, 0, 1}, Sizes(static_cast<size_t>(size()), 1), in, out);
}

}  // namespace hvd::data
