// See batch.h.
#include "engine/data/batch.h"

#include <algorithm>
#include <utility>

#include "engine/data/adasum.h"
#include "engine/data/neutral.h"
#include "engine/types/dtypes.h"
#include "engine/types/operations.h"

namespace hvd::data {

using queue::Output;
using types::OpKind;

void Batch::plan(Program& program, SetComms& set, SetDevice* device, const HostMath& math, std::vector<Work>& work,
                 uint64_t seq) {
  set_ = &set;
  device_ = device;
  math_ = &math;
  work_ = &work;
  seq_ = seq;
  collect(program);
  switch (work[0].item.sig->fields().kind) {
    case OpKind::Barrier:
      begin(HVD_BARRIER, HVD_UINT8);
      return set.plan(program, collective_);
    case OpKind::Allgather:
      return plan_allgather(program);
    case OpKind::Alltoall:
      return plan_alltoall(program);
    case OpKind::Reducescatter:
      return plan_reducescatter(program);
    default:
      return plan_by_dtype(program);
  }
}

void Batch::collect(Program& program) {
  pieces_.clear();
  for (size_t w = 0; w < work_->size(); ++w) {
    const auto& f = (*work_)[w].item.sig->fields();
    const queue::Request* r = (*work_)[w].request.get();
    for (size_t i = 0; i < f.tensors.size(); ++i) {
      Piece p;
      p.work = w;
      p.index = i;
      p.dtype = f.tensors[i].dtype;
      const auto& shape = f.tensors[i].shape;
      for (size_t d = 1; d < shape.size(); ++d) p.row *= static_cast<uint64_t>(shape[d]);
      if (r) {
        p.in.base = r->in[i].data;
        p.count = r->in[i].count();
        if (!r->out.empty()) p.out.base = r->out[i].data;
      } else if (!types::sizes_vary(f.kind)) {  // to the others a rank that has joined adds no rows
        p.count = p.row * (shape.empty() ? 1 : static_cast<uint64_t>(shape[0]));
        add_neutral(program, p, f.reduce_op, f.kind == OpKind::Reducescatter);
      }
      pieces_.push_back(p);
    }
  }
}

// What a rank that has joined puts in; `apart`: the result goes elsewhere.
void Batch::add_neutral(Program& program, Piece& p, int32_t op, bool apart) {
  const uint64_t bytes = p.count * types::dtype_bytes(p.dtype);
  const hvd_buf host = program.scratch_buf(bytes);
  fill_neutral(host.base, bytes, p.dtype, op);
  p.in = p.out = device_ ? device_scratch(program, bytes) : host;
  if (device_ && bytes) device_->device()->copy(device_->device()->stream(), {{p.in, host, bytes}});
  if (apart) p.out = device_ ? device_scratch(program, bytes) : program.scratch_buf(bytes);
}

hvd_buf Batch::device_scratch(Program& program, uint64_t bytes) {
  auto memory = device_->device()->allocate(HVD_MEM_DEVICE, bytes);
  const hvd_buf buf = memory->buf;
  program.keep(std::move(memory));
  return buf;
}

// One collective per dtype: a batch has one, but a group may mix them.
void Batch::plan_by_dtype(Program& program) {
  const OpKind kind = (*work_)[0].item.sig->fields().kind;
  for (auto& pieces : by_dtype_) pieces.clear();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    size_t k = 0;
    while (k < by_dtype_.size() && !by_dtype_[k].empty() && pieces_[by_dtype_[k][0]].dtype != pieces_[i].dtype) ++k;
    if (k == by_dtype_.size()) by_dtype_.emplace_back();
    by_dtype_[k].push_back(i);
  }
  for (const auto& pieces : by_dtype_)
    if (!pieces.empty()) emit(program, types::collective_of(kind), pieces);
}

plugin::Collective& Batch::begin(int32_t coll, int32_t dtype) {
  const auto& f = (*work_)[0].item.sig->fields();
  auto& c = collective_;
  c.reset();
  c.coll = coll;
  c.dtype = dtype;
  c.op = f.reduce_op;
  c.prescale = f.prescale;
  c.postscale = f.postscale;
  c.deadline_ns = HVD_NO_DEADLINE;
  c.seq = seq_;
  if (device_) c.stream = device_->device()->stream();
  if (f.kind == OpKind::Broadcast)
    while (set_->layout().members[static_cast<size_t>(c.root)] != f.root) ++c.root;
  return c;
}

void Batch::add(const Piece& p, uint64_t out_count) {
  const uint64_t width = types::dtype_bytes(p.dtype);
  collective_.in.push_back({p.in.base, p.in.offset, p.count * width});
  collective_.out.push_back({p.out.base, p.out.offset, out_count * width});
  collective_.counts.push_back(p.count);
}

void Batch::emit(Program& program, int32_t coll, const std::vector<size_t>& pieces) {
  auto& c = begin(coll, pieces_[pieces[0]].dtype);
  const auto ranks = static_cast<size_t>(set_->size());
  for (size_t i : pieces) {
    const Piece& p = pieces_[i];
    uint64_t out_count = p.count;
    if (coll == HVD_REDUCESCATTER) {
      const int64_t rows = fields(p).tensors[p.index].shape[0];
      for (int32_t r = 0; r < set_->size(); ++r)
        c.out_counts.push_back(static_cast<uint64_t>(types::scattered_rows(rows, r, set_->size())) * p.row);
      out_count = c.out_counts[c.out_counts.size() - ranks + static_cast<size_t>(set_->rank())];
    } else if (coll == HVD_ALLGATHER || coll == HVD_ALLTOALL) {
      out_count = 0;
      for (size_t r = 0; r < ranks; ++r) {
        c.out_counts.push_back(static_cast<uint64_t>(rows_in_[r * pieces_.size() + i]) * p.row);
        out_count += c.out_counts.back();
        if (coll == HVD_ALLTOALL)
          c.in_counts.push_back(static_cast<uint64_t>(rows_out_[r * pieces_.size() + i]) * p.row);
      }
    }
    add(p, out_count);
  }
  const bool adasum = fields(pieces_[pieces[0]]).kind == OpKind::Adasum;
  if (device_)
    adasum ? device_->plan_adasum(program, c) : device_->plan(program, c);
  else if (adasum)
    plan_adasum(program, *set_, *math_, c);
  else
    set_->plan(program, c);
}

// Requests without outputs get them here.
void Batch::plan_reducescatter(Program& program) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const queue::Request* r = request(pieces_[i]);
    if (!r || !r->out.empty()) continue;
    allocate_output(program, i, types::scattered_rows(r->in[pieces_[i].index].shape[0], set_->rank(), set_->size()));
  }
  plan_by_dtype(program);
}

// The first dimensions may change from step to step, so they travel here and not in the negotiation.
void Batch::plan_allgather(Program& program) {
  const uint64_t n = pieces_.size();
  int64_t* mine = program.scratch_array<int64_t>(n);
  for (size_t i = 0; i < n; ++i) {
    const Piece& p = pieces_[i];
    mine[i] = request(p) ? request(p)->in[p.index].shape[0] : 0;
  }
  const auto ranks = static_cast<uint64_t>(set_->size());
  rows_in_ = program.scratch_array<int64_t>(n * ranks);
  auto& c = begin(HVD_ALLGATHER, HVD_INT64);
  c.op = 0;
  c.stream = nullptr;
  c.in = {{mine, 0, n * sizeof(int64_t)}};
  c.out = {{rows_in_, 0, n * ranks * sizeof(int64_t)}};
  c.counts = {n};
  set_->plan(program, c);
  program.compute([this, n, ranks](Program& then) {
    for (size_t i = 0; i < n; ++i) {
      int64_t rows = 0;
      for (size_t r = 0; r < ranks; ++r) rows += rows_in_[r * n + i];
      allocate_output(then, i, rows);
    }
    plan_by_dtype(then);
  });
}

void Batch::plan_alltoall(Program& program) {
  const uint64_t n = pieces_.size();
  const auto ranks = static_cast<uint64_t>(set_->size());
  rows_out_ = program.scratch_array<int64_t>(n * ranks);
  rows_in_ = program.scratch_array<int64_t>(n * ranks);
  for (size_t i = 0; i < n; ++i) {
    Piece& p = pieces_[i];
    int64_t sent = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const int64_t rows = request(p) ? request(p)->splits[p.index][r] : 0;
      rows_out_[r * n + i] = rows;
      sent += rows;
    }
    p.count = static_cast<uint64_t>(sent) * p.row;
  }
  auto& c = begin(HVD_ALLTOALL, HVD_INT64);
  c.stream = nullptr;
  c.in = {{rows_out_, 0, n * ranks * sizeof(int64_t)}};
  c.out = {{rows_in_, 0, n * ranks * sizeof(int64_t)}};
  c.counts = {n * ranks};
  set_->plan(program, c);
  program.compute([this, n, ranks](Program& then) {
    for (size_t i = 0; i < n; ++i) {
      std::vector<int64_t> received(ranks);
      int64_t rows = 0;
      for (size_t r = 0; r < ranks; ++r) rows += received[r] = rows_in_[r * n + i];
      allocate_output(then, i, rows);
      if (auto* q = request(pieces_[i])) q->received_splits.push_back(std::move(received));
    }
    plan_by_dtype(then);
  });
}

void Batch::allocate_output(Program& program, size_t piece, int64_t rows) {
  Piece& p = pieces_[piece];
  const uint64_t bytes = static_cast<uint64_t>(rows) * p.row * types::dtype_bytes(p.dtype);
  queue::Request* r = request(p);
  if (!r) {
    p.out = device_ ? device_scratch(program, bytes) : program.scratch_buf(bytes);
    return;
  }
  Output out;
  out.dtype = p.dtype;
  out.shape = fields(p).tensors[p.index].shape;
  out.shape[0] = rows;
  if (device_) {
    out.device_type = fields(p).device_type;
    out.device_memory = device_->device()->allocate(HVD_MEM_DEVICE, bytes);
    p.out = out.device_memory->buf;
  } else {
    out.data = queue::allocate(bytes);
    p.out.base = out.data.get();
  }
  r->outputs.push_back(std::move(out));
}

}  // namespace hvd::data
