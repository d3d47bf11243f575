// Reductions from other types, other operations and other collectives. See emulated.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/data/emulated.h"
#include "engine/data/parts.h"
#include "engine/types/dtypes.h"

namespace hvd::data {

namespace {

// Where the bytes [begin, begin + bytes) of the reduced stream belong.
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

// A multiple of 64 elements: slices then divide evenly into the elements of any carrier.
uint64_t round_bytes(uint64_t bytes, uint64_t width) {
  return std::max<uint64_t>(1, bytes / (64 * width)) * 64 * width;
}

}  // namespace

// What the backend does itself. Factors that it does not apply are applied here, before and after it.
void EmulatedTransport::native(Program& program, const plugin::Collective& c) {
  const uint32_t factors = Abilities::factors_of(c);
  const bool varying = !c.out_counts.empty();
  if (factors == Abilities::kNone || routes_.abilities().ask(c.coll, c.dtype, c.op, varying, factors).served ||
      !types::is_reducible(c.dtype, c.op)) {
    return inner_.plan(program, c);
  }
  plugin::Collective s = c;
  s.prescale = s.postscale = 1.0;
  if (factors & Abilities::kPrescale) {
    for (size_t i = 0; i < c.counts.size(); ++i)
      s.in[i] = c.coll == HVD_ALLREDUCE ? c.out[i] : program.scratch_buf(c.counts[i] * types::dtype_bytes(c.dtype));
    program.compute([this, from = c.in, to = s.in, counts = c.counts, dtype = c.dtype, pre = c.prescale](Program&) {
      for (size_t i = 0; i < counts.size(); ++i)
        math_.convert(address(to[i]), dtype, address(from[i]), dtype, counts[i], pre);
    });
  }
  inner_.plan(program, s);
  if (!(factors & Abilities::kPostscale)) return;
  std::vector<uint64_t> results;
  for (size_t i = 0; i < c.counts.size(); ++i) results.push_back(out_elements(c, i, rank(), size()));
  program.compute([this, out = c.out, results = std::move(results), dtype = c.dtype, post = c.postscale](Program&) {
    for (size_t i = 0; i < results.size(); ++i)
      math_.convert(address(out[i]), dtype, address(out[i]), dtype, results[i], post);
  });
}

// The division is the same on all ranks, so the results stay the same bits.
void EmulatedTransport::sum_and_divide(Program& program, const plugin::Collective& c) {
  plugin::Collective s = c;
  s.op = HVD_SUM;
  s.postscale = 1.0;
  native(program, s);
  program.compute([this, out = c.out, counts = c.counts, dtype = c.dtype, post = c.postscale](Program&) {
    for (size_t i = 0; i < counts.size(); ++i) {
      char* p = address(out[i]);
      math_.store_result(p, dtype, p, dtype, counts[i], static_cast<uint32_t>(size()), post);
    }
  });
}

void EmulatedTransport::widened(Program& program, const plugin::Collective& c) {
  const Widening wide = routes_.widening(c.dtype, c.op);
  const uint64_t width = types::dtype_bytes(c.dtype), w = types::dtype_bytes(wide.dtype);
  const auto in = list_of(c.in, c.counts, width), out = list_of(c.out, c.counts, width);
  const uint64_t round = round_bytes(policy_.scratch_bytes / w * width, width);
  Room room;
  for (uint64_t at = 0; at < in->bytes(); at += round) {
    const uint64_t bytes = std::min(round, in->bytes() - at), n = bytes / width;
    char* const sums = room.at_least(program, n * w);
    program.compute(
        [this, in, at, bytes, sums, dtype = c.dtype, to = wide.dtype, width, w, pre = c.prescale](Program&) {
          in->walk(at, bytes, [&](const char* p, uint64_t offset, uint64_t k) {
            math_.load_partial(sums + offset / width * w, to, p, dtype, k / width, pre);
          });
        });
    plugin::Collective s = settings(c, HVD_ALLREDUCE, wide.dtype);
    s.op = wide.op;
    s.prescale = s.postscale = 1.0;
    s.in = s.out = {{sums, 0, n * w}};
    s.counts = {n};
    inner_.plan(program, s);
    if (out->bytes() == 0) continue;
    const uint32_t divisor = c.op == HVD_AVG ? static_cast<uint32_t>(size()) : 1;
    program.compute([this, out, at, bytes, sums, dtype = c.dtype, from = wide.dtype, width, w, divisor,
                     post = c.postscale](Program&) {
      out->walk(at, bytes, [&](char* p, uint64_t offset, uint64_t k) {
        math_.store_result(p, dtype, sums + offset / width * w, from, k / width, divisor, post);
      });
    });
  }
}

// ALLREDUCE and REDUCESCATTER: every rank has all the data of a round for a moment, and reduces what it wants of it.
void EmulatedTransport::gather_reduce(Program& program, const plugin::Collective& c) {
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
  const uint64_t round = round_bytes(policy_.scratch_bytes / static_cast<uint64_t>(size()), width);
  Room from, to;
  for (uint64_t at = 0; at < in->bytes(); at += round) {
    const uint64_t bytes = std::min(round, in->bytes() - at);
    const Blocks blocks =
        gather(program, c, c.dtype, {in, at, bytes}, Sizes(static_cast<size_t>(size()), bytes), from, to);
    if (targets->empty()) continue;
    program.compute([this, blocks, targets, at, bytes, width, dtype = c.dtype, op = c.op, pre = c.prescale,
                     post = c.postscale](Program&) {
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

// Every rank reduces one slice of each round and gives the result to all.
void EmulatedTransport::exchange_reduce(Program& program, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  const auto ranks = static_cast<uint64_t>(size()), me = static_cast<uint64_t>(rank());
  const auto in = list_of(c.in, c.counts, width), out = list_of(c.out, c.counts, width);
  const Carrier carrier = routes_.carrier(HVD_ALLTOALL, c.dtype);
  const uint64_t limit = routes_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  // Padding may add a little to each slice.
  const uint64_t most = limit > UINT64_MAX / 16 ? UINT64_MAX : limit * carrier.width / 2;
  const uint64_t round = round_bytes(std::min(policy_.scratch_bytes, most), width);
  Room from, to, results, mine, all;
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
    const Blocks blocks = exchange(program, c, c.dtype, give, Sizes(ranks, own), from, to);
    char* const result = results.at_least(program, own);
    if (own) {
      program.compute([this, blocks, result, n = own / width, dtype = c.dtype, op = c.op, pre = c.prescale,
                       post = c.postscale](Program&) {
        const std::vector<const void*> sources(blocks.begin(), blocks.end());
        math_.reduce_all(result, sources.data(), static_cast<uint32_t>(sources.size()), n, dtype, op, pre, post);
      });
    }
    auto result_list = std::make_shared<ByteList>();
    result_list->add(result, own);
    const Blocks parts = gather(program, c, c.dtype, {result_list, 0, own}, sizes, mine, all);
    if (out->bytes() == 0) continue;
    program.compute([parts, sizes, out, at, slice](Program&) {
      for (size_t r = 0; r < parts.size(); ++r)
        if (sizes[r]) out->write(at + r * slice, sizes[r], parts[r]);
    });
  }
}

void EmulatedTransport::exchange_reduce_scatter(Program& program, const plugin::Collective& c) {
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
  const Carrier carrier = routes_.carrier(HVD_ALLTOALL, c.dtype);
  const uint64_t limit = routes_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  const uint64_t most = limit > UINT64_MAX / 16 ? UINT64_MAX : limit * carrier.width / 2;
  const uint64_t round = round_bytes(std::min(policy_.scratch_bytes, most) / ranks, width);
  Room room_in, room_out;
  for (uint64_t at = 0; at < longest; at += round) {
    std::vector<Slice> give;
    const auto cut = [&](uint64_t bytes) { return at < bytes ? std::min(round, bytes - at) : 0; };
    for (const auto& list : to) give.push_back({list, at, cut(list->bytes())});
    const uint64_t own = cut(out->bytes());
    const Blocks blocks = exchange(program, c, c.dtype, give, Sizes(ranks, own), room_in, room_out);
    if (own == 0) continue;
    program.compute([this, blocks, out, at, own, width, dtype = c.dtype, op = c.op, pre = c.prescale,
                     post = c.postscale](Program&) {
      std::vector<const void*> sources(blocks.size());
      out->walk(at, own, [&](char* p, uint64_t offset, uint64_t bytes) {
        for (size_t r = 0; r < blocks.size(); ++r) sources[r] = blocks[r] + offset;
        math_.reduce_all(p, sources.data(), static_cast<uint32_t>(sources.size()), bytes / width, dtype, op, pre, post);
      });
    });
  }
}

void EmulatedTransport::reduce_through_allreduce(Program& program, const plugin::Collective& c) {
  plugin::Collective s = settings(c, HVD_ALLREDUCE, c.dtype);
  s.in = c.in;
  s.out = c.out;
  s.counts = c.counts;
  if (c.root != rank()) {
    uint64_t bytes = 0;
    for (uint64_t n : c.counts) bytes += n * types::dtype_bytes(c.dtype);
    const Route below = routes_.choose(HVD_ALLREDUCE, c.dtype, c.op, false, bytes);
    const bool writes = below == Route::Native || below == Route::SumAndDivide;  // others can leave it out
    for (size_t i = 0; i < c.counts.size(); ++i)
      s.out[i] = writes ? program.scratch_buf(c.counts[i] * types::dtype_bytes(c.dtype)) : hvd_buf{};
  }
  plan(program, s);
}

void EmulatedTransport::scatter_through_allreduce(Program& program, const plugin::Collective& c) {
  const uint64_t width = types::dtype_bytes(c.dtype);
  plugin::Collective s = settings(c, HVD_ALLREDUCE, c.dtype);
  s.in = c.in;
  s.counts = c.counts;
  for (uint64_t n : c.counts) s.out.push_back(program.scratch_buf(n * width));
  plan(program, s);
  struct Copy {
    char *to, *from;
    uint64_t bytes;
  };
  std::vector<Copy> copies;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    uint64_t skip = 0;
    for (int32_t r = 0; r < rank(); ++r) skip += out_part(c, i, r, size()) * width;
    const uint64_t bytes = out_part(c, i, rank(), size()) * width;
    if (bytes) copies.push_back({address(c.out[i]), address(s.out[i]) + skip, bytes});
  }
  program.compute([copies = std::move(copies)](Program&) {
    for (const Copy& x : copies) std::memcpy(x.to, x.from, x.bytes);
  });
}

void EmulatedTransport::barrier(Program& program, const plugin::Collective& c) {
  const int32_t dtype = routes_.summed_dtype();
  if (dtype >= 0) {
    plugin::Collective s = settings(c, HVD_ALLREDUCE, dtype);
    const hvd_buf word = program.scratch_buf(types::dtype_bytes(dtype));
    std::memset(word.base, 0, word.bytes);
    s.op = HVD_SUM;
    s.prescale = s.postscale = 1.0;
    s.in = s.out = {word};
    s.counts = {1};
    return inner_.plan(program, s);
  }
  auto byte = std::make_shared<ByteList>();
  byte->add(program.scratch(1), 1);
  Room in, out;
  gather(program, c, HVD_UINT8, {byte, 0, 1}, Sizes(static_cast<size_t>(size()), 1), in, out);
}

}  // namespace hvd::data
