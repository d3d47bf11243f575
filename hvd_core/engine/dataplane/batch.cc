// See batch.h.
#include "engine/dataplane/batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "engine/base/dtypes.h"
#include "engine/base/operations.h"
#include "engine/dataplane/adasum.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/packing.h"

namespace hvd::dataplane {

using base::OpKind;
using calls::Output;

void BatchWriter::write_schedule(Schedule& schedule, SetComms& set, SetDevice* device, const HostMath& math,
                                 std::vector<agreement::BatchItem>& work, uint64_t seq) {
  set_ = &set;
  device_ = device;
  math_ = &math;
  work_ = &work;
  seq_ = seq;
  collect(schedule);
  switch (work[0].item.sig->fields().kind) {
    case OpKind::Barrier:
      begin(HVD_BARRIER, HVD_UINT8);
      return set.write_steps(schedule, collective_);
    case OpKind::Allgather:
      return write_allgather(schedule);
    case OpKind::Alltoall:
      return write_alltoall(schedule);
    case OpKind::Reducescatter:
      return write_reducescatter(schedule);
    default:
      return write_by_dtype(schedule);
  }
}

void BatchWriter::collect(Schedule& schedule) {
  tensors_.clear();
  for (size_t w = 0; w < work_->size(); ++w) {
    const auto& f = (*work_)[w].item.sig->fields();
    const calls::Request* r = (*work_)[w].request.get();
    for (size_t i = 0; i < f.tensors.size(); ++i) {
      Tensor t;
      t.work = w;
      t.index = i;
      t.dtype = f.tensors[i].dtype;
      const auto& shape = f.tensors[i].shape;
      for (size_t d = 1; d < shape.size(); ++d) t.row *= static_cast<uint64_t>(shape[d]);
      if (r) {
        t.in.base = r->call.in[i].data;
        t.count = r->call.in[i].count();
        if (!r->call.out.empty()) t.out.base = r->call.out[i].data;
      } else if (!base::sizes_vary(f.kind)) {  // a rank that has joined adds no rows to an allgather or alltoall
        t.count = t.row * (shape.empty() ? 1 : static_cast<uint64_t>(shape[0]));
        add_neutral(schedule, t, f.reduce_op, f.kind == OpKind::Reducescatter);
      }
      tensors_.push_back(t);
    }
  }
}

// The input of a rank that has joined, and a place for the result; `apart`: not the place of the input.
void BatchWriter::add_neutral(Schedule& schedule, Tensor& t, int32_t op, bool apart) {
  const uint64_t bytes = t.count * base::dtype_bytes(t.dtype);
  const hvd_buf host = schedule.scratch_buf(bytes);
  fill_neutral(host.base, bytes, t.dtype, op);
  t.in = t.out = device_ ? scratch(schedule, bytes) : host;
  if (device_ && bytes) device_->device()->copy(device_->device()->stream(), {{t.in, host, bytes}});
  if (apart) t.out = scratch(schedule, bytes);
}

hvd_buf BatchWriter::scratch(Schedule& schedule, uint64_t bytes) const {
  return device_ ? scratch_on(schedule, *device_->device(), bytes) : schedule.scratch_buf(bytes);
}

// One collective per dtype. A batch has one dtype, unless it is a group that mixes dtypes.
void BatchWriter::write_by_dtype(Schedule& schedule) {
  const auto& first = (*work_)[0].item.sig->fields();
  const bool to_one = first.kind == OpKind::Allreduce && first.root >= 0;
  const int32_t coll = to_one ? HVD_REDUCE : base::collective_of(first.kind);
  for (auto& tensors : by_dtype_) tensors.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    size_t k = 0;
    while (k < by_dtype_.size() && !by_dtype_[k].empty() && tensors_[by_dtype_[k][0]].dtype != tensors_[i].dtype) ++k;
    if (k == by_dtype_.size()) by_dtype_.emplace_back();
    by_dtype_[k].push_back(i);
  }
  for (const auto& tensors : by_dtype_)
    if (!tensors.empty()) emit(schedule, coll, tensors);
}

constexpr uint64_t kMostCompared = 128;

// A factor for a sum, in the place of a factor for an average. A backend's 0 means that there is no factor, so a
// quotient that is too small for a double becomes the smallest one, which no element type of a sum but float64 can tell
// from 0.
double share_of(double factor, size_t ranks) {
  const double share = factor / static_cast<double>(ranks);
  return share != 0.0 ? share : std::copysign(std::numeric_limits<double>::denorm_min(), factor);
}

plugins::Collective& BatchWriter::begin(int32_t coll, int32_t dtype) {
  const auto& f = (*work_)[0].item.sig->fields();
  auto& c = collective_;
  c.reset();
  c.coll = coll;
  c.dtype = dtype;
  c.op = base::sizes_vary(f.kind) ? 0 : f.reduce_op;
  c.prescale = f.prescale;
  c.postscale = f.postscale;
  c.seq = seq_;
  if (device_) c.stream = device_->device()->stream();
  if (f.kind == OpKind::Broadcast || f.kind == OpKind::Send || coll == HVD_REDUCE)
    while (set_->layout().members[static_cast<size_t>(c.root)] != f.root) ++c.root;
  if (coll == HVD_SEND || coll == HVD_RECV) c.peer = 1 - set_->rank();
  return c;
}

// R17: a set of two ranks carries a message. Both ranks come to the same answer.
int32_t BatchWriter::message_collective(int32_t dtype) const {
  if (!(device_ ? device_->sends(dtype) : set_->sends(dtype))) return HVD_BROADCAST;
  const int32_t me = set_->layout().members[static_cast<size_t>(set_->rank())];
  return me == (*work_)[0].item.sig->fields().root ? HVD_SEND : HVD_RECV;
}

void BatchWriter::add(const Tensor& t, uint64_t out_count) {
  const uint64_t width = base::dtype_bytes(t.dtype);
  const hvd_buf in{t.in.base, t.in.offset, t.count * width}, out{t.out.base, t.out.offset, out_count * width};
  collective_.in.push_back(collective_.coll == HVD_RECV ? hvd_buf{} : in);
  collective_.out.push_back(collective_.coll == HVD_SEND ? hvd_buf{} : out);
  collective_.counts.push_back(t.count);
}

void BatchWriter::emit(Schedule& schedule, int32_t coll, const std::vector<size_t>& tensors) {
  const int32_t dtype = tensors_[tensors[0]].dtype;
  auto& c = begin(coll == HVD_SEND ? message_collective(dtype) : coll, dtype);
  const auto ranks = static_cast<size_t>(set_->size());
  // An average with a factor is a sum with a factor, in the original's arithmetic. Without one it is exact.
  if (base::has_reduction(coll) && c.op == HVD_AVG && base::is_reducible(c.dtype, c.op) &&
      (c.prescale != 1.0 || c.postscale != 1.0)) {
    c.op = HVD_SUM;
    c.postscale = share_of(c.postscale, ranks);
  }
  for (size_t i : tensors) {
    const Tensor& t = tensors_[i];
    uint64_t out_count = t.count;
    if (coll == HVD_REDUCESCATTER) {
      const int64_t rows = fields(t).tensors[t.index].shape[0];
      for (int32_t r = 0; r < set_->size(); ++r)
        c.out_counts.push_back(static_cast<uint64_t>(base::scattered_rows(rows, r, set_->size())) * t.row);
      out_count = c.out_counts[c.out_counts.size() - ranks + static_cast<size_t>(set_->rank())];
    } else if (coll == HVD_ALLGATHER || coll == HVD_ALLTOALL) {
      out_count = 0;
      for (size_t r = 0; r < ranks; ++r) {
        c.out_counts.push_back(static_cast<uint64_t>(rows_in_[r * tensors_.size() + i]) * t.row);
        out_count += c.out_counts.back();
        if (coll == HVD_ALLTOALL)
          c.in_counts.push_back(static_cast<uint64_t>(rows_out_[r * tensors_.size() + i]) * t.row);
      }
    }
    add(t, out_count);
  }
  const bool adasum = fields(tensors_[tensors[0]]).kind == OpKind::Adasum;
  if (device_)
    adasum ? device_->write_adasum(schedule, c) : device_->write_steps(schedule, c);
  else if (adasum)
    AdasumLowering(*set_, *math_).write_steps(schedule, c);
  else
    set_->write_steps(schedule, c);
}

// Allocates the outputs of requests that have none yet.
void BatchWriter::write_reducescatter(Schedule& schedule) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const calls::Request* r = request(tensors_[i]);
    if (!r || !r->call.out.empty()) continue;
    allocate_output(schedule, i,
                    base::scattered_rows(r->call.in[tensors_[i].index].shape[0], set_->rank(), set_->size()));
  }
  write_by_dtype(schedule);
}

// Exchanges `n` numbers of this rank, in host memory.
void BatchWriter::exchange_sizes(Schedule& schedule, int32_t coll, int64_t* mine, uint64_t n, int64_t* all) {
  const uint64_t received = coll == HVD_ALLGATHER ? n * static_cast<uint64_t>(set_->size()) : n;
  auto& c = begin(coll, HVD_INT64);
  c.stream = nullptr;
  c.in = {{mine, 0, n * sizeof(int64_t)}};
  c.out = {{all, 0, received * sizeof(int64_t)}};
  c.counts = {n};
  set_->write_steps(schedule, c);
}

// The first dimensions may change from step to step, so they are exchanged here and are not part of the signature.
void BatchWriter::write_allgather(Schedule& schedule) {
  const uint64_t n = tensors_.size();
  int64_t* mine = schedule.scratch_array<int64_t>(n);
  for (size_t i = 0; i < n; ++i) {
    const Tensor& t = tensors_[i];
    mine[i] = request(t) ? request(t)->call.in[t.index].shape[0] : 0;
  }
  const auto ranks = static_cast<uint64_t>(set_->size());
  rows_in_ = schedule.scratch_array<int64_t>(n * ranks);
  if ((*work_)[0].item.sig->fields().reduce_op == base::kAgreed) {
    for (size_t r = 0; r < ranks; ++r) std::copy_n(mine, n, rows_in_ + r * n);
    return write_by_dtype(schedule);
  }
  exchange_sizes(schedule, HVD_ALLGATHER, mine, n, rows_in_);
  schedule.compute(
      [this, n, mine](Schedule& then) {
        for (size_t i = 0; i < n; ++i) allocate_announced(then, i, mine[i]);
        write_by_dtype(then);
      },
      "ALLOCATE_OUTPUT");
}

void BatchWriter::write_alltoall(Schedule& schedule) {
  const uint64_t n = tensors_.size();
  const auto ranks = static_cast<uint64_t>(set_->size());
  rows_out_ = schedule.scratch_array<int64_t>(n * ranks);
  rows_in_ = schedule.scratch_array<int64_t>(n * ranks);
  for (size_t i = 0; i < n; ++i) {
    Tensor& t = tensors_[i];
    int64_t sent = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const int64_t rows = request(t) ? request(t)->call.splits[t.index][r] : 0;
      rows_out_[r * n + i] = rows;
      sent += rows;
    }
    t.count = static_cast<uint64_t>(sent) * t.row;
  }
  if (const int32_t sizes = (*work_)[0].item.sig->fields().reduce_op; sizes != base::kExchanged) {
    for (size_t i = 0; i < n; ++i)
      for (size_t r = 0; r < ranks; ++r)
        rows_in_[r * n + i] = request(tensors_[i])->call.received[tensors_[i].index * ranks + r];
    // Every rank compares the splits of all. That grows with the square of their number, so that large sets trust them.
    if (sizes == base::kAgreed || ranks > kMostCompared) return write_by_dtype(schedule);
    return compare_splits(schedule);
  }
  exchange_sizes(schedule, HVD_ALLTOALL, rows_out_, n * ranks, rows_in_);
  schedule.compute(
      [this, n, ranks](Schedule& then) {
        for (size_t i = 0; i < n; ++i) {
          allocate_announced(then, i, rows_out_[static_cast<size_t>(set_->rank()) * n + i]);
          auto* q = request(tensors_[i]);
          if (!q) continue;
          std::vector<int64_t>& received = q->received_splits.emplace_back(ranks);
          for (size_t r = 0; r < ranks; ++r) received[r] = rows_in_[r * n + i];
        }
        write_by_dtype(then);
      },
      "ALLOCATE_OUTPUT");
}

// Each rank knows the rows that it sends and those that it expects. All ranks come to the same result, so that all of
// them refuse the batch, or none.
void BatchWriter::compare_splits(Schedule& schedule) {
  const uint64_t n = tensors_.size();
  const auto ranks = static_cast<uint64_t>(set_->size());
  const uint64_t each = 2 * n * ranks;
  int64_t* mine = schedule.scratch_array<int64_t>(each);
  std::copy_n(rows_out_, n * ranks, mine);
  std::copy_n(rows_in_, n * ranks, mine + n * ranks);
  int64_t* all = schedule.scratch_array<int64_t>(each * ranks);
  exchange_sizes(schedule, HVD_ALLGATHER, mine, each, all);
  schedule.compute([this, n, ranks, each, all](Schedule& then) {
    for (size_t i = 0; i < n; ++i)
      for (size_t from = 0; from < ranks; ++from)
        for (size_t to = 0; to < ranks; ++to) {
          const int64_t sent = all[from * each + to * n + i], expected = all[to * each + n * ranks + from * n + i];
          if (sent == expected) continue;
          const auto& members = set_->layout().members;
          throw plugins::Refused("Mismatched ALLTOALL splits of '" + *(*work_)[tensors_[i].work].item.name +
                                 "': rank " + std::to_string(members[from]) + " sends " + std::to_string(sent) +
                                 " rows to rank " + std::to_string(members[to]) + ", which expects " +
                                 std::to_string(expected) + ".");
        }
    write_by_dtype(then);
  });
}

// The numbers of rows come from the other ranks. What one of them may be wrong about must not decide where this rank
// writes: no number is negative, nor more than memory has place for, and that of this rank is what it has sent. `mine`:
// the rows that this rank gives itself.
int64_t BatchWriter::announced_rows(size_t tensor, int64_t mine) const {
  const Tensor& t = tensors_[tensor];
  const uint64_t row_bytes = t.row * base::dtype_bytes(t.dtype);
  const auto refuse = [&](size_t rank, const std::string& why) {
    const auto& item = (*work_)[t.work].item;
    throw plugins::BackendError(HVD_E_INVALID, 0, 0,
                                std::string(base::op_name(item.sig->fields().kind)) + " '" + *item.name + "': rank " +
                                    std::to_string(set_->layout().members[rank]) + " announced " +
                                    std::to_string(rows_in_[rank * tensors_.size() + tensor]) + " rows" + why);
  };
  const auto me = static_cast<size_t>(set_->rank());
  int64_t sum = 0;
  for (size_t r = 0; r < set_->layout().members.size(); ++r) {
    const int64_t rows = rows_in_[r * tensors_.size() + tensor];
    if (rows < 0) refuse(r, "");
    if (r == me && rows != mine) refuse(r, " to itself, and has " + std::to_string(mine));
    if (__builtin_add_overflow(sum, rows, &sum) || !base::product({&sum, 1}, row_bytes))
      refuse(most_rows(tensor), ", more than an address space has place for");
  }
  return sum;
}

// The rank that has announced most of the rows.
size_t BatchWriter::most_rows(size_t tensor) const {
  size_t most = 0;
  for (size_t r = 1; r < set_->layout().members.size(); ++r)
    if (rows_in_[r * tensors_.size() + tensor] > rows_in_[most * tensors_.size() + tensor]) most = r;
  return most;
}

void BatchWriter::allocate_announced(Schedule& schedule, size_t tensor, int64_t mine) {
  const int64_t rows = announced_rows(tensor, mine);
  const auto no_memory = [&] {
    const size_t most = most_rows(tensor);
    return plugins::BackendError(HVD_E_NOMEM, 0, 0,
                                 "out of memory for the result of a collective, '" +
                                     *(*work_)[tensors_[tensor].work].item.name + "': " + std::to_string(rows) +
                                     " rows, of which rank " + std::to_string(set_->layout().members[most]) +
                                     " announced " + std::to_string(rows_in_[most * tensors_.size() + tensor]));
  };
  try {
    allocate_output(schedule, tensor, rows);
  } catch (const std::bad_alloc&) {
    throw no_memory();
  } catch (const plugins::BackendError& e) {  // of a device
    if (e.code != HVD_E_NOMEM) throw;
    throw no_memory();
  }
}

void BatchWriter::allocate_output(Schedule& schedule, size_t tensor, int64_t rows) {
  Tensor& t = tensors_[tensor];
  const uint64_t bytes = static_cast<uint64_t>(rows) * t.row * base::dtype_bytes(t.dtype);
  calls::Request* r = request(t);
  if (!r) {
    t.out = scratch(schedule, bytes);
    return;
  }
  Output out;
  out.dtype = t.dtype;
  out.shape = fields(t).tensors[t.index].shape;
  out.shape[0] = rows;
  if (device_) {
    out.device_type = fields(t).device_type;
    out.device_memory = device_->device()->allocate(HVD_MEM_DEVICE, bytes);
    t.out = out.device_memory->buf;
  } else {
    out.data = calls::allocate(bytes);
    t.out.base = out.data.get();
  }
  r->outputs.push_back(std::move(out));
}

}  // namespace hvd::dataplane
