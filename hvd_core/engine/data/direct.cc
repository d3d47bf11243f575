// See direct.h.
#include "engine/data/direct.h"

#include <cstring>
#include <utility>
#include <vector>

#include "engine/control/signature.h"

namespace hvd::data {

namespace {

char* address(const hvd_buf& b) { return static_cast<char*>(b.base) + b.offset; }

void copy_settings(plugin::Collective& to, const plugin::Collective& from) {
  to.coll = from.coll;
  to.dtype = from.dtype;
  to.op = from.op;
  to.root = from.root;
  to.peer = from.peer;
  to.prescale = from.prescale;
  to.postscale = from.postscale;
  to.deadline_ns = from.deadline_ns;
  to.seq = from.seq;
  to.stream = from.stream;
}

}  // namespace

void DirectTransport::plan(Program& program, const plugin::Collective& c) {
  if (c.counts.size() > 1 && !(comm_.caps() & HVD_CAP_VECTORED)) {
    if (c.coll == HVD_ALLREDUCE || c.coll == HVD_REDUCE || c.coll == HVD_BROADCAST)
      plan_packed(program, c);
    else
      plan_each(program, c);
    return;
  }
  program.collective(comm_) = c;
}

void DirectTransport::plan_packed(Program& program, const plugin::Collective& c) {
  const uint64_t width = control::dtype_bytes(c.dtype);
  uint64_t total = 0;
  for (uint64_t n : c.counts) total += n;
  const hvd_buf packed = program.scratch_buf(total * width);
  program.compute([packed, width, in = c.in, counts = c.counts](Program&) {
    char* at = address(packed);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i]) std::memcpy(at, address(in[i]), counts[i] * width);
      at += counts[i] * width;
    }
  });
  auto& one = program.collective(comm_);
  copy_settings(one, c);
  one.in = one.out = {packed};
  one.counts = {total};
  program.compute([packed, width, out = c.out, counts = c.counts](Program&) {
    const char* at = address(packed);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i]) std::memcpy(address(out[i]), at, counts[i] * width);
      at += counts[i] * width;
    }
  });
}

void DirectTransport::plan_each(Program& program, const plugin::Collective& c) {
  const auto ranks = static_cast<size_t>(size());
  const auto slice = [ranks](const std::vector<uint64_t>& all, size_t i) {
    if (all.empty()) return all;
    const auto from = all.begin() + static_cast<ptrdiff_t>(i * ranks);
    return std::vector<uint64_t>(from, from + static_cast<ptrdiff_t>(ranks));
  };
  for (size_t i = 0; i < c.counts.size(); ++i) {
    auto& one = program.collective(comm_);
    copy_settings(one, c);
    one.in = {c.in[i]};
    one.out = {c.out[i]};
    one.counts = {c.counts[i]};
    one.in_counts = slice(c.in_counts, i);
    one.out_counts = slice(c.out_counts, i);
  }
}

}  // namespace hvd::data
