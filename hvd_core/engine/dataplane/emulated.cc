// Chooses the composition of a collective, logs it, and words the refusals. See emulated.h.
#include "engine/dataplane/emulated.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"

namespace hvd::dataplane {

EmulatedLowering::EmulatedLowering(Lowering& inner, plugins::Communicator& comm, const HostMath& math,
                                   EmulationPolicy policy)
    : inner_(inner),
      comm_(comm),
      math_(math),
      packer_(comm.rank(), comm.size(), nullptr, &math),
      policy_(std::move(policy)),
      compositions_(comm, policy_.completes) {}

namespace {
std::string describe(int32_t coll, int32_t dtype, int32_t op, const std::string& device) {
  std::string text = base::collective_name(coll);
  if (coll == HVD_BARRIER) return text + " on " + device;
  if (base::has_reduction(coll) && op != HVD_SUM) text += std::string(" (") + base::reduce_op_name(op) + ")";
  return text + " of " + base::dtype_name(dtype) + " on " + device;
}
}  // namespace

void EmulatedLowering::refuse(const plugins::Collective& c, Composition composition) const {
  std::string text = "horovod: " + describe(c.coll, c.dtype, c.op, policy_.device_type) +
                     " is not supported by backend '" + comm_.backend().name() + "' and ";
  if (composition != Composition::None) {
    const std::string here = policy_.device_type + "." + base::collective_name(c.coll);
    text += "emulation is off (HOROVOD_EMULATION=0).\n  fix: ";
    text += policy_.device_type == "cpu"
                ? "HOROVOD_EMULATION=1, HOROVOD_BACKEND=" + here + "=<another backend>, or cast."
                : "HOROVOD_BACKEND=" + here + "=tcp, or cast.";  // tcp serves host memory: staged
  } else if (base::has_reduction(c.coll) && !base::is_reducible(c.dtype, c.op)) {
    text += "cannot be emulated: this reduction of " + std::string(base::dtype_name(c.dtype)) +
            " does not exist on host memory either.\n  fix: cast.";
  } else if (!policy_.completes && !(comm_.caps() & HVD_CAP_REQUEST)) {
    text += "cannot be emulated: the backend works on streams, which host memory does not have.\n  fix: " +
            std::string("HOROVOD_BACKEND=<another backend>, or cast.");
  } else {
    text += "cannot be emulated: the backend has no allgather to compose it from.\n  fix: " +
            std::string("HOROVOD_BACKEND=<another backend>.");
  }
  text += "  No automatic narrowing is done.";
  if (policy_.alike) throw plugins::Refused(text);
  throw plugins::BackendError(HVD_E_UNSUPPORTED, 0, 0, text);
}

void EmulatedLowering::log_once(const plugins::Collective& c, Composition composition) {
  if (comm_.rank() != 0) return;
  const std::string key = comm_.backend().name() + "/" + std::to_string(c.coll) + "/" + std::to_string(c.dtype);
  if (!policy_.said->insert(key).second) return;
  // A warning for compositions that cost time. Moving bytes as another type or dividing at the end costs little.
  const bool cheap =
      composition == Composition::Bytes || composition == Composition::SumAndDivide || c.coll == HVD_BARRIER;
  base::log(cheap ? base::Level::Info : base::Level::Warning,
            describe(c.coll, c.dtype, c.op, policy_.device_type) + ": backend '" + comm_.backend().name() + "' " +
                compositions_.shortage(c.coll, c.dtype, c.op) + "; EMULATED by " +
                compositions_.describe(composition, c.coll, c.dtype, c.op) + " (said once).");
}

Served EmulatedLowering::served(int32_t coll, int32_t dtype, int32_t op, bool varying) {
  const Composition composition = compositions_.choose(coll, dtype, op, varying, 0);
  if (composition == Composition::Native) return {Service::Native, ""};
  if (composition == Composition::None || !policy_.allowed) return {Service::Unsupported, ""};
  return {Service::Emulated, compositions_.describe(composition, coll, dtype, op)};
}

plugins::Collective EmulatedLowering::settings(const plugins::Collective& c, int32_t coll, int32_t dtype) const {
  plugins::Collective s(c.settings());
  s.coll = coll;
  s.dtype = dtype;
  return s;
}

Composition EmulatedLowering::choose(const plugins::Collective& c) {
  const uint64_t bytes = base::has_reduction(c.coll) ? total_bytes(c) : 0;
  const Composition composition = compositions_.choose(c.coll, c.dtype, c.op, c.varying(), bytes);
  if (composition == Composition::Native) return composition;
  if (composition == Composition::None || !policy_.allowed) refuse(c, composition);
  log_once(c, composition);
  return composition;
}

void EmulatedLowering::write_steps(Schedule& schedule, const plugins::Collective& c) {
  const Composition composition = choose(c);
  if (composition == Composition::Native) return native(schedule, c);
  switch (composition) {
    case Composition::Bytes:
      if (c.coll == HVD_BROADCAST) return broadcast_bytes(schedule, c);
      if (c.coll == HVD_ALLGATHER) return allgather(schedule, c);
      return alltoall(schedule, c, false);
    case Composition::GatheredMove:
      if (c.coll == HVD_BROADCAST) return broadcast_gathered(schedule, c);
      if (c.coll == HVD_BARRIER) return barrier(schedule, c);
      return alltoall(schedule, c, true);
    case Composition::SumAndDivide:
      return sum_and_divide(schedule, c);
    case Composition::Widened:
      return widened(schedule, c);
    case Composition::ExchangeReduce:
      if (c.coll == HVD_REDUCESCATTER) return exchange_reduce_scatter(schedule, c);
      return exchange_reduce(schedule, c);
    case Composition::GatherReduce:
      return gather_reduce(schedule, c);
    default:
      if (c.coll == HVD_BARRIER) return barrier(schedule, c);
      if (c.coll == HVD_REDUCE) return reduce_through_allreduce(schedule, c);
      return scatter_through_allreduce(schedule, c);
  }
}

// Reductions from other types, other operations and other collectives. See emulated.h.

namespace {

ByteList list_of(const std::vector<hvd_buf>& buffers, const std::vector<uint64_t>& counts, uint64_t width) {
  ByteList list;
  for (size_t i = 0; i < counts.size(); ++i)
    if (buffers[i].base) list.add(part_of(buffers[i], 0, counts[i] * width));
  return list;
}

// By rank: the places of its parts of all buffers. The parts of a buffer follow one another in the order of ranks, and
// have elements(i, rank) elements.
template <class Elements>
std::vector<ByteList> lists_by_rank(const std::vector<hvd_buf>& buffers, int32_t ranks, uint64_t width,
                                    Elements elements) {
  std::vector<ByteList> lists(static_cast<size_t>(ranks));
  for (size_t i = 0; i < buffers.size(); ++i) {
    uint64_t at = 0;
    for (int32_t r = 0; r < ranks; ++r) {
      const uint64_t bytes = elements(i, r) * width;
      lists[static_cast<size_t>(r)].add(part_of(buffers[i], at, bytes));
      at += bytes;
    }
  }
  return lists;
}

std::vector<uint64_t> sizes_of(const std::vector<ByteList>& lists) {
  std::vector<uint64_t> sizes;
  for (const ByteList& list : lists) sizes.push_back(list.bytes());
  return sizes;
}

// The next bytes of each list.
std::vector<ByteList> parts_of(const std::vector<ByteList>& lists, uint64_t at, uint64_t bytes) {
  std::vector<ByteList> parts;
  for (const ByteList& list : lists) parts.push_back(list.part(at, bytes));
  return parts;
}

// The bytes of one round: a multiple of 64 elements, so that slices divide evenly into elements of any carrier.
uint64_t round_bytes(uint64_t bytes, uint64_t width) {
  return std::max<uint64_t>(1, bytes / (64 * width)) * 64 * width;
}

}  // namespace

// The backend serves the collective itself. Factors that it does not apply are applied here, before and after it.
void EmulatedLowering::native(Schedule& schedule, const plugins::Collective& c) {
  const uint32_t factors = Abilities::factors_of(c);
  if (factors == Abilities::kNone || compositions_.abilities().ask(c, factors).served ||
      !base::is_reducible(c.dtype, c.op)) {
    return inner_.write_steps(schedule, c);
  }
  packer_.write_scaled(schedule, c, factors,
                       [&](const plugins::Collective& one) { inner_.write_steps(schedule, one); });
}

// The division is the same on all ranks, so the results stay the same bits.
void EmulatedLowering::sum_and_divide(Schedule& schedule, const plugins::Collective& c) {
  plugins::Collective s = c;
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

void EmulatedLowering::widened(Schedule& schedule, const plugins::Collective& c) {
  const Widening wide = compositions_.widening(c.dtype, c.op);
  const uint64_t width = base::dtype_bytes(c.dtype), w = base::dtype_bytes(wide.dtype);
  const ByteList in = list_of(c.in, c.counts, width), out = list_of(c.out, c.counts, width);
  const uint64_t round = round_bytes(scratch_limit(c) / w * width, width);
  Scratch room;
  for (uint64_t at = 0; at < in.bytes(); at += round) {
    const ByteList from = in.part(at, round), to = out.part(at, round);
    const uint64_t n = from.bytes() / width;
    char* const sums = room.at_least(schedule, n * w);
    schedule.compute([this, from, sums, dtype = c.dtype, wide = wide.dtype, width, w, pre = c.prescale](Schedule&) {
      from.walk([&](const hvd_buf& b, uint64_t offset) {
        math_.load_partial(sums + offset / width * w, wide, address(b), dtype, b.bytes / width, pre);
      });
    });
    plugins::Collective s = settings(c, HVD_ALLREDUCE, wide.dtype);
    s.op = wide.op;
    s.prescale = s.postscale = 1.0;
    s.in = s.out = {{sums, 0, n * w}};
    s.counts = {n};
    inner_.write_steps(schedule, s);
    if (to.bytes() == 0) continue;
    const uint32_t divisor = c.op == HVD_AVG ? static_cast<uint32_t>(size()) : 1;
    schedule.compute(
        [this, to, sums, dtype = c.dtype, wide = wide.dtype, width, w, divisor, post = c.postscale](Schedule&) {
          to.walk([&](const hvd_buf& b, uint64_t offset) {
            math_.store_result(address(b), dtype, sums + offset / width * w, wide, b.bytes / width, divisor, post);
          });
        });
  }
}

// Adds the reduction of all ranks' blocks, in rank order. `out`: the place of each result; null for those that this
// rank does not need.
void EmulatedLowering::write_reduction(Schedule& schedule, const plugins::Collective& c, const Blocks& blocks,
                                       ByteList out) {
  if (out.bytes() == 0) return;
  schedule.compute([this, blocks, out = std::move(out), width = base::dtype_bytes(c.dtype), dtype = c.dtype, op = c.op,
                    pre = c.prescale, post = c.postscale](Schedule&) {
    std::vector<const void*> sources(blocks.size());
    out.walk([&](const hvd_buf& b, uint64_t offset) {
      if (!b.base) return;
      for (size_t r = 0; r < blocks.size(); ++r) sources[r] = blocks[r] + offset;
      math_.reduce_all(address(b), sources.data(), static_cast<uint32_t>(sources.size()), b.bytes / width, dtype, op,
                       pre, post);
    });
  });
}

// ALLREDUCE and REDUCESCATTER: every rank gathers all data of a round and reduces the part that it needs.
void EmulatedLowering::gather_reduce(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const ByteList in = list_of(c.in, c.counts, width);
  ByteList out;  // as long as `in`
  for (size_t i = 0; i < c.counts.size(); ++i) {
    uint64_t skip = 0, bytes = c.counts[i] * width;
    if (c.coll == HVD_REDUCESCATTER) {
      skip = out_start(c, i, rank(), size()) * width;
      bytes = out_part(c, i, rank(), size()) * width;
    }
    out.add({nullptr, 0, skip});
    out.add(part_of(c.out[i], 0, bytes));
    out.add({nullptr, 0, c.counts[i] * width - skip - bytes});
  }
  const uint64_t round = round_bytes(scratch_limit(c) / static_cast<uint64_t>(size()), width);
  Scratch from, to;
  for (uint64_t at = 0; at < in.bytes(); at += round) {
    const ByteList mine = in.part(at, round);
    const Sizes sizes(static_cast<size_t>(size()), mine.bytes());
    write_reduction(schedule, c, gather(schedule, c, c.dtype, mine, sizes, from, to), out.part(at, round));
  }
}

// The most bytes that one call of exchange() can move.
uint64_t EmulatedLowering::exchange_limit(int32_t dtype) {
  const Carrier carrier = compositions_.carrier(HVD_ALLTOALL, dtype);
  const uint64_t limit = compositions_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  // Half, because padding may add a little to each slice.
  return limit > UINT64_MAX / 16 ? UINT64_MAX : limit * carrier.width / 2;
}

// Every rank reduces one slice of each round, then all ranks gather the results.
void EmulatedLowering::exchange_reduce(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto ranks = static_cast<uint64_t>(size()), me = static_cast<uint64_t>(rank());
  const ByteList in = list_of(c.in, c.counts, width), out = list_of(c.out, c.counts, width);
  const uint64_t round = round_bytes(std::min(scratch_limit(c), exchange_limit(c.dtype)), width);
  Scratch from, to, results, mine, all;
  for (uint64_t at = 0; at < in.bytes(); at += round) {
    const uint64_t bytes = std::min(round, in.bytes() - at);
    const uint64_t slice = ((bytes / width + ranks - 1) / ranks + 63) / 64 * 64 * width;
    std::vector<ByteList> give, places;
    for (uint64_t first = 0; give.size() < ranks; first = std::min(bytes, first + slice)) {
      const uint64_t n = std::min(slice, bytes - first);
      give.push_back(in.part(at + first, n));
      places.push_back(out.part(at + first, n));
    }
    const Sizes sizes = sizes_of(give);
    const uint64_t own = sizes[me];
    const Blocks blocks = exchange(schedule, c, c.dtype, give, Sizes(ranks, own), from, to);
    ByteList result;
    result.add({results.at_least(schedule, own), 0, own});
    write_reduction(schedule, c, blocks, result);
    write_blocks(schedule, gather(schedule, c, c.dtype, result, sizes, mine, all), std::move(places));
  }
}

void EmulatedLowering::exchange_reduce_scatter(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size());
  const auto to = lists_by_rank(c.in, size(), width, [&](size_t i, int32_t r) { return out_part(c, i, r, size()); });
  ByteList out;
  for (size_t i = 0; i < c.counts.size(); ++i) out.add(part_of(c.out[i], 0, out_part(c, i, rank(), size()) * width));
  const Sizes sizes = sizes_of(to);
  const uint64_t longest = *std::ranges::max_element(sizes);
  const uint64_t round = round_bytes(std::min(scratch_limit(c), exchange_limit(c.dtype)) / ranks, width);
  Scratch room_in, room_out;
  for (uint64_t at = 0; at < longest; at += round) {
    ByteList own = out.part(at, round);
    const Blocks blocks =
        exchange(schedule, c, c.dtype, parts_of(to, at, round), Sizes(ranks, own.bytes()), room_in, room_out);
    write_reduction(schedule, c, blocks, std::move(own));
  }
}

void EmulatedLowering::reduce_through_allreduce(Schedule& schedule, const plugins::Collective& c) {
  plugins::Collective s = settings(c, HVD_ALLREDUCE, c.dtype);
  s.in = c.in;
  s.out = c.out;
  s.counts = c.counts;
  if (c.root != rank()) {
    const Composition below = compositions_.choose(HVD_ALLREDUCE, c.dtype, c.op, false, total_bytes(c));
    const bool writes = below == Composition::Native ||
                        below == Composition::SumAndDivide;  // the other compositions accept a null output
    for (size_t i = 0; i < c.counts.size(); ++i)
      s.out[i] = writes ? schedule.scratch_buf(c.counts[i] * base::dtype_bytes(c.dtype)) : hvd_buf{};
  }
  write_steps(schedule, s);
}

void EmulatedLowering::scatter_through_allreduce(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  plugins::Collective s = settings(c, HVD_ALLREDUCE, c.dtype);
  s.in = c.in;
  s.counts = c.counts;
  for (uint64_t n : c.counts) s.out.push_back(schedule.scratch_buf(n * width));
  write_steps(schedule, s);
  Copies copies;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t skip = out_start(c, i, rank(), size()) * width, bytes = out_part(c, i, rank(), size()) * width;
    if (bytes) copies.push_back({c.out[i], part_of(s.out[i], skip, bytes), bytes});
  }
  copy_on_host(schedule, std::move(copies));
}

void EmulatedLowering::barrier(Schedule& schedule, const plugins::Collective& c) {
  const int32_t dtype = compositions_.summed_dtype();
  if (dtype >= 0) {
    plugins::Collective s = settings(c, HVD_ALLREDUCE, dtype);
    const hvd_buf word = schedule.scratch_buf(base::dtype_bytes(dtype));
    std::memset(word.base, 0, word.bytes);
    s.op = HVD_SUM;
    s.prescale = s.postscale = 1.0;
    s.in = s.out = {word};
    s.counts = {1};
    return inner_.write_steps(schedule, s);
  }
  ByteList byte;
  byte.add(schedule.scratch_buf(1));
  Scratch in, out;
  gather(schedule, c, HVD_UINT8, byte, Sizes(static_cast<size_t>(size()), 1), in, out);
}

// Broadcast, allgather and alltoall from other types and other collectives. See emulated.h.

namespace {

// A size that another rank has announced, and that sums and rounds are computed from.
void check_announced(size_t rank, uint64_t bytes) {
  if (bytes <= base::kMostBytes) return;
  throw plugins::BackendError(HVD_E_INVALID, 0, 0,
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

// The addresses of blocks of so many units that follow one another.
std::vector<char*> blocks_at(char* p, const std::vector<uint64_t>& units, uint64_t width) {
  std::vector<char*> blocks;
  for (uint64_t n : units) {
    blocks.push_back(p);
    p += n * width;
  }
  return blocks;
}

}  // namespace

char* EmulatedLowering::Scratch::at_least(Schedule& schedule, uint64_t n) {
  if (p == nullptr || bytes < n) {
    p = schedule.scratch(n);
    bytes = n;
  }
  return p;
}

EmulatedLowering::Blocks EmulatedLowering::gather(Schedule& schedule, const plugins::Collective& c, int32_t dtype,
                                                  const ByteList& mine, const Sizes& bytes, Scratch& in, Scratch& out) {
  const Carrier carrier = compositions_.carrier(HVD_ALLGATHER, dtype);
  const uint64_t w = carrier.width;
  Sizes units;
  for (uint64_t n : bytes) units.push_back(ceil_div(n, w));
  const uint64_t longest = *std::max_element(units.begin(), units.end());
  if (!carrier.varying) std::fill(units.begin(), units.end(), longest);
  const uint64_t total = std::accumulate(units.begin(), units.end(), uint64_t{0});
  char* const all = out.at_least(schedule, total * w);
  Blocks blocks = blocks_at(all, units, w);
  if (total == 0) return blocks;
  const uint64_t own = units[static_cast<size_t>(rank())];
  char* from = mine.bytes() == own * w ? mine.contiguous() : nullptr;
  if (from && dtype != carrier.dtype && !aligned(from, w)) from = nullptr;
  if (!from) {
    from = in.at_least(schedule, own * w);
    if (mine.bytes()) schedule.compute([mine, from](Schedule&) { mine.read(from); });
  }
  plugins::Collective s = settings(c, HVD_ALLGATHER, carrier.dtype);
  s.in = {{from, 0, own * w}};
  s.out = {{all, 0, total * w}};
  s.counts = {own};
  if (carrier.varying) s.out_counts = units;
  inner_.write_steps(schedule, s);
  return blocks;
}

EmulatedLowering::Blocks EmulatedLowering::exchange(Schedule& schedule, const plugins::Collective& c, int32_t dtype,
                                                    const std::vector<ByteList>& to, const Sizes& from, Scratch& in,
                                                    Scratch& out) {
  const Carrier carrier = compositions_.carrier(HVD_ALLTOALL, dtype);
  const uint64_t w = carrier.width;
  plugins::Collective s = settings(c, HVD_ALLTOALL, carrier.dtype);
  uint64_t sent = 0, received = 0;
  ByteList all;
  for (const ByteList& list : to) {
    sent += s.in_counts.emplace_back(ceil_div(list.bytes(), w));
    for (const hvd_buf& b : list.buffers()) all.add(b);
  }
  for (uint64_t n : from) received += s.out_counts.emplace_back(ceil_div(n, w));
  const bool whole = std::ranges::all_of(to, [w](const ByteList& list) { return list.bytes() % w == 0; });
  char* source = whole ? all.contiguous() : nullptr;
  if (source && dtype != carrier.dtype && !aligned(source, w)) source = nullptr;
  if (!source) {
    source = in.at_least(schedule, sent * w);
    schedule.compute([to, blocks = blocks_at(source, s.in_counts, w)](Schedule&) {
      for (size_t r = 0; r < to.size(); ++r) to[r].read(blocks[r]);
    });
  }
  char* const target = out.at_least(schedule, received * w);
  s.in = {{source, 0, sent * w}};
  s.out = {{target, 0, received * w}};
  s.counts = {sent};
  inner_.write_steps(schedule, s);
  return blocks_at(target, s.out_counts, w);
}

// Adds the copies of gathered or exchanged bytes to their places.
void EmulatedLowering::write_blocks(Schedule& schedule, const Blocks& blocks, std::vector<ByteList> places) {
  if (std::ranges::all_of(places, [](const ByteList& list) { return list.bytes() == 0; })) return;
  schedule.compute([blocks, places = std::move(places)](Schedule&) {
    for (size_t r = 0; r < places.size(); ++r) places[r].write(blocks[r]);
  });
}

// A collective whose type may need another alignment than the caller's buffers have.
void EmulatedLowering::write_inner(Schedule& schedule, const plugins::Collective& c, uint64_t alignment) {
  packer_.write_moved(schedule, c, alignment, 1.0, 1.0,
                      [&](const plugins::Collective& moved) { inner_.write_steps(schedule, moved); });
}

// Broadcasts whole carrier elements in place. The remaining bytes at the ends of the buffers are packed into one more
// buffer.
void EmulatedLowering::broadcast_bytes(Schedule& schedule, const plugins::Collective& c) {
  const Carrier carrier = compositions_.carrier(HVD_BROADCAST, c.dtype);
  const uint64_t width = base::dtype_bytes(c.dtype), w = carrier.width;
  plugins::Collective s = settings(c, HVD_BROADCAST, carrier.dtype);
  ByteList in_tails, out_tails;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width, body = bytes / w * w, tail = bytes - body;
    if (body) {
      s.in.push_back(part_or_null(c.in[i], 0, body));
      s.out.push_back(part_or_null(c.out[i], 0, body));
      s.counts.push_back(body / w);
    }
    if (!tail) continue;
    in_tails.add(part_of(c.in[i], body, tail));
    if (c.out[i].base) out_tails.add(part_of(c.out[i], body, tail));
  }
  const uint64_t tails = in_tails.bytes();
  char* packed = nullptr;
  if (tails) {
    packed = schedule.scratch(ceil_div(tails, w) * w);
    if (c.root == rank()) schedule.compute([in_tails, packed](Schedule&) { in_tails.read(packed); });
    s.in.push_back({packed, 0, ceil_div(tails, w) * w});
    s.out.push_back(s.in.back());
    s.counts.push_back(ceil_div(tails, w));
  }
  if (s.counts.empty()) return;
  write_inner(schedule, s, w);
  if (out_tails.bytes()) schedule.compute([out_tails, packed](Schedule&) { out_tails.write(packed); });
}

// An allgather to which only the root contributes bytes.
void EmulatedLowering::broadcast_gathered(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto root = static_cast<size_t>(c.root);
  ByteList in, out;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    if (c.root == rank()) in.add(part_of(c.in[i], 0, c.counts[i] * width));
    if (c.out[i].base) out.add(part_of(c.out[i], 0, c.counts[i] * width));
  }
  if (c.root == rank() && c.in[0].base == c.out[0].base) out = {};
  const uint64_t total = total_bytes(c);
  Scratch from, to;
  const uint64_t chunk = std::max<uint64_t>(64, scratch_limit(c) / 64 * 64);
  for (uint64_t at = 0; at < total; at += chunk) {
    Sizes bytes(static_cast<size_t>(size()), 0);
    bytes[root] = std::min(chunk, total - at);
    std::vector<ByteList> places(bytes.size());
    places[root] = out.part(at, chunk);
    write_blocks(schedule, gather(schedule, c, c.dtype, in.part(at, chunk), bytes, from, to), std::move(places));
  }
}

void EmulatedLowering::allgather(Schedule& schedule, const plugins::Collective& c) {
  const Carrier carrier = compositions_.carrier(HVD_ALLGATHER, c.dtype);
  const uint64_t width = base::dtype_bytes(c.dtype), w = carrier.width;
  const auto part = [&](size_t i, int32_t r) { return out_part(c, i, r, size()); };
  auto parts = lists_by_rank(c.out, size(), width, part);
  ByteList mine;
  bool whole = carrier.varying;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    for (int32_t r = 0; r < size(); ++r) whole = whole && part(i, r) * width % w == 0;
    // In place, this rank's part lies at its place in the output.
    const uint64_t skip = same_place(c.in[i], c.out[i]) ? out_start(c, i, rank(), size()) * width : 0;
    mine.add(part_of(c.in[i], skip, part(i, rank()) * width));
  }
  if (whole) {
    plugins::Collective s = settings(c, HVD_ALLGATHER, carrier.dtype);
    s.in = c.in;
    s.out = c.out;
    for (size_t i = 0; i < c.counts.size(); ++i) {
      s.counts.push_back(c.counts[i] * width / w);
      for (int32_t r = 0; r < size(); ++r) s.out_counts.push_back(part(i, r) * width / w);
    }
    return write_inner(schedule, s, carrier.dtype == c.dtype ? 1 : w);
  }
  // All buffers at once, packed.
  Scratch in, out;
  const Blocks blocks = gather(schedule, c, c.dtype, mine, sizes_of(parts), in, out);
  write_blocks(schedule, blocks, std::move(parts));
}

void EmulatedLowering::alltoall(Schedule& schedule, const plugins::Collective& c, bool gathered) {
  const uint64_t width = base::dtype_bytes(c.dtype);
  const auto ranks = static_cast<size_t>(size());
  const Carrier carrier = gathered ? Carrier{} : compositions_.carrier(HVD_ALLTOALL, c.dtype);
  const uint64_t limit =
      gathered ? UINT64_MAX : compositions_.abilities().ask(HVD_ALLTOALL, carrier.dtype, HVD_SUM, true).max_count;
  bool whole = !gathered && c.counts.size() == 1 && limit == UINT64_MAX;
  // Results in place would overwrite data that is still to be sent.
  std::vector<hvd_buf> sources = c.in;
  Copies copies;
  for (size_t i = 0; i < c.counts.size(); ++i) {
    const uint64_t bytes = c.counts[i] * width;
    if (!same_place(c.in[i], c.out[i]) || bytes == 0) continue;
    sources[i] = schedule.scratch_buf(bytes);
    copies.push_back({sources[i], c.in[i], bytes});
    whole = false;
  }
  copy_on_host(schedule, std::move(copies));
  const auto to = lists_by_rank(sources, size(), width, [&](size_t i, int32_t r) { return in_part(c, i, r, size()); });
  const auto from = lists_by_rank(c.out, size(), width, [&](size_t i, int32_t r) { return out_part(c, i, r, size()); });
  for (size_t r = 0; whole && r < ranks; ++r)
    whole = to[r].bytes() % carrier.width == 0 && from[r].bytes() % carrier.width == 0;
  if (whole) {
    plugins::Collective s = settings(c, HVD_ALLTOALL, carrier.dtype);
    s.in = c.in;
    s.out = c.out;
    s.counts = {c.counts[0] * width / carrier.width};
    for (size_t r = 0; r < ranks; ++r) {
      s.in_counts.push_back(to[r].bytes() / carrier.width);
      s.out_counts.push_back(from[r].bytes() / carrier.width);
    }
    return write_inner(schedule, s, carrier.dtype == c.dtype ? 1 : carrier.width);
  }
  if (gathered) return alltoall_gathered(schedule, c, to, from);
  if (limit != UINT64_MAX) return alltoall_rounds(schedule, c, to, from, carrier.width, limit);
  Scratch in, out;
  const Blocks blocks = exchange(schedule, c, c.dtype, to, sizes_of(from), in, out);
  write_blocks(schedule, blocks, from);
}

// Only pairs of ranks know the sizes of their parts, so all ranks first agree on the number of rounds.
void EmulatedLowering::alltoall_rounds(Schedule& schedule, const plugins::Collective& c,
                                       const std::vector<ByteList>& to, const std::vector<ByteList>& from,
                                       uint64_t unit, uint64_t max_count) {
  auto* const longest = schedule.scratch_array<uint64_t>(1);
  *longest = std::ranges::max(sizes_of(to));
  ByteList word;
  word.add({longest, 0, sizeof *longest});
  Scratch in, out;
  const Blocks sizes =
      gather(schedule, c, HVD_UINT64, word, Sizes(static_cast<size_t>(size()), sizeof *longest), in, out);
  const uint64_t slice =
      std::clamp<uint64_t>(max_count / static_cast<uint64_t>(size()), 1, base::kMostBytes / unit) * unit;
  schedule.compute([this, c = settings(c, c.coll, c.dtype), to, from, sizes, slice](Schedule& p) {
    uint64_t most = 0;
    for (size_t r = 0; r < sizes.size(); ++r) {
      uint64_t n;
      std::memcpy(&n, sizes[r], sizeof n);
      check_announced(r, n);
      most = std::max(most, n);
    }
    Scratch round_in, round_out;
    const auto round = [=, this](Schedule& q, uint64_t at) mutable {
      std::vector<ByteList> places = parts_of(from, at, slice);
      const Blocks blocks = exchange(q, c, c.dtype, parts_of(to, at, slice), sizes_of(places), round_in, round_out);
      write_blocks(q, blocks, std::move(places));
    };
    write_rounds(p, 0, most, slice, std::make_shared<const Round>(round));
  });
}

// Every rank gathers all data, a chunk at a time, and takes the part for itself.
void EmulatedLowering::alltoall_gathered(Schedule& schedule, const plugins::Collective& c,
                                         const std::vector<ByteList>& to, const std::vector<ByteList>& from) {
  const auto ranks = static_cast<size_t>(size());
  auto* const row = schedule.scratch_array<uint64_t>(ranks);
  ByteList all;
  for (size_t r = 0; r < ranks; ++r) {
    row[r] = to[r].bytes();
    for (const hvd_buf& b : to[r].buffers()) all.add(b);
  }
  ByteList words;
  words.add({row, 0, ranks * sizeof *row});
  Scratch in, out;
  const Blocks table = gather(schedule, c, HVD_UINT64, words, Sizes(ranks, words.bytes()), in, out);
  const uint64_t chunk = std::max<uint64_t>(64, scratch_limit(c) / ranks / 64 * 64);
  schedule.compute([this, c = settings(c, c.coll, c.dtype), all, from, table, chunk, ranks](Schedule& p) {
    const auto me = static_cast<size_t>(rank());
    Sizes totals(ranks, 0), starts(ranks, 0);  // bytes that rank r sends; where this rank's part of them starts
    for (size_t r = 0; r < ranks; ++r) {
      for (size_t d = 0; d < ranks; ++d) {
        uint64_t n;
        std::memcpy(&n, table[r] + d * sizeof n, sizeof n);
        check_announced(r, n);
        if (d < me) starts[r] += n;
        if (d == me && n != from[r].bytes())
          throw plugins::BackendError(HVD_E_INVALID, 0, 0,
                                      "alltoall: rank " + std::to_string(r) + " sends " + std::to_string(n) +
                                          " bytes, this rank (" + std::to_string(me) + ") expects " +
                                          std::to_string(from[r].bytes()));
        totals[r] += n;
      }
    }
    const uint64_t most = *std::max_element(totals.begin(), totals.end());
    Scratch round_in, round_out;
    const auto round = [=, this](Schedule& q, uint64_t at) mutable {
      Sizes bytes;
      for (uint64_t n : totals) bytes.push_back(at < n ? std::min(chunk, n - at) : 0);
      Blocks blocks = gather(q, c, c.dtype, all.part(at, bytes[me]), bytes, round_in, round_out);
      std::vector<ByteList> places(ranks);
      for (size_t r = 0; r < ranks; ++r) {
        const uint64_t begin = std::max(at, starts[r]), end = at + bytes[r];
        if (begin >= end) continue;
        places[r] = from[r].part(begin - starts[r], end - begin);
        blocks[r] += begin - at;
      }
      write_blocks(q, blocks, std::move(places));
    };
    write_rounds(p, 0, most, chunk, std::make_shared<const Round>(round));
  });
}

}  // namespace hvd::dataplane
