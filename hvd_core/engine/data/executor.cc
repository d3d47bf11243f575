// From a batch of the log to collectives of a communicator. See executor.h.
#include "engine/data/executor.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "engine/data/neutral.h"

namespace hvd::data {

namespace {
std::unique_ptr<void, queue::FreeDeleter> allocate(uint64_t bytes) {
  // Multiples of the alignment, as aligned_alloc wants; never 0, so that the memory has an address.
  std::unique_ptr<void, queue::FreeDeleter> memory(std::aligned_alloc(64, (bytes + 64) / 64 * 64));
  if (!memory) throw std::bad_alloc();
  return memory;
}

constexpr int kTestsPerRound = 128;  // a few microseconds
}  // namespace

using control::OpKind;
using queue::Output;

Executor::Executor(int32_t rank, std::vector<int32_t> hosts, std::shared_ptr<plugin::Backend> backend,
                   plugin::Store& store, Events& events)
    : rank_(rank), hosts_(std::move(hosts)), backend_(std::move(backend)), store_(store), events_(events) {}

void Executor::create_comm(control::SetId set, const std::vector<int32_t>& members, const std::string& key,
                           int64_t deadline_ns) {
  std::vector<int32_t> hosts;
  int32_t me = -1;
  for (size_t i = 0; i < members.size(); ++i) {
    hosts.push_back(hosts_[static_cast<size_t>(members[i])]);
    if (members[i] == rank_) me = static_cast<int32_t>(i);
  }
  auto comm = backend_->create_comm(key, store_, members, hosts, me, deadline_ns);
  std::lock_guard lock(comms_mutex_);
  comms_[set] = {std::move(comm), members};
}

void Executor::enqueue(control::SetId set, std::vector<Work> batch) { queue_.push_back({set, std::move(batch)}); }

bool Executor::progress() {
  bool any = false;
  try {
    while (!queue_.empty()) {
      if (stage_ == Stage::Fresh) {
        prepare();
      } else if (started_) {
        // A collective takes many short turns with its peers; reading the links between any two of them would cost more
        // than the turns themselves.
        int tests = 0;
        while (!comm_->comm->test())
          if (++tests == kTestsPerRound) return any;
        started_ = false;
        if (is_packed_) scatter_packed();
        ++step_;
      }
      any = true;
      next_collective();
      if (started_) return any;
    }
  } catch (const plugin::BackendError& e) {
    started_ = false;
    events_.broken(e.code, e.what());
  } catch (const std::bad_alloc&) {
    started_ = false;
    events_.broken(HVD_E_NOMEM, "out of memory for the result of a collective");
  } catch (const std::exception& e) {  // a size that no container can hold, say
    started_ = false;
    events_.broken(HVD_E_INTERNAL, e.what());
  }
  return any;
}

void Executor::wait(int64_t deadline_ns) {
  try {
    comm_->comm->wait(deadline_ns);
  } catch (const plugin::BackendError& e) {
    started_ = false;
    events_.broken(e.code, e.what());
  }
}

// ------------------------------------------------------------------------------------------- one batch, step by step

void Executor::prepare() {
  Batch& batch = queue_.front();
  auto it = comms_.find(batch.set);
  if (it == comms_.end()) throw plugin::BackendError(HVD_E_INTERNAL, 0, 0, "no communicator for this process set");
  comm_ = &it->second;
  pieces_.clear();
  plan_.clear();
  scratch_.clear();
  step_ = 0;
  is_packed_ = false;
  ++seq_;
  const auto& first = batch.work[0].item.sig->fields();
  for (size_t w = 0; w < batch.work.size(); ++w) {
    const auto& fields = batch.work[w].item.sig->fields();
    const queue::Request* request = batch.work[w].request.get();
    for (size_t i = 0; i < fields.tensors.size(); ++i) {
      Piece p;
      p.work = w;
      p.index = i;
      p.dtype = fields.tensors[i].dtype;
      if (request) {
        p.in = request->in[i].data;
        p.count = request->in[i].count();
        if (!request->out.empty()) p.out = request->out[i].data;
      } else if (fields.kind != OpKind::Allgather) {  // to an allgather a joined rank adds no rows
        p.count = 1;
        for (int64_t d : fields.tensors[i].shape) p.count *= static_cast<uint64_t>(d);
        p.in = p.out = neutral(p.count * control::dtype_bytes(p.dtype), p.dtype, fields.reduce_op);
      }
      pieces_.push_back(p);
    }
  }
  if (first.kind == OpKind::Barrier) {
    stage_ = Stage::Data;
    plan_.emplace_back();
  } else if (first.kind == OpKind::Allgather) {
    stage_ = Stage::Sizes;
    prepare_sizes();
  } else {
    stage_ = Stage::Data;
    plan_by_dtype();
  }
}

// One collective per dtype: a batch has one, but a group may mix them.
void Executor::plan_by_dtype() {
  std::map<int32_t, size_t> place;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    auto [at, fresh] = place.try_emplace(pieces_[i].dtype, plan_.size());
    if (fresh) plan_.emplace_back();
    plan_[at->second].push_back(i);
  }
}

// The first dimensions may change from step to step, so they travel here and not in the negotiation.
void Executor::prepare_sizes() {
  const auto& work = queue_.front().work;
  my_sizes_.assign(pieces_.size(), 0);
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (const auto& r = work[pieces_[i].work].request) my_sizes_[i] = r->in[pieces_[i].index].shape[0];
  all_sizes_.assign(pieces_.size() * static_cast<size_t>(comm_->comm->size()), 0);
}

void Executor::prepare_allgather() {
  stage_ = Stage::Data;
  step_ = 0;
  auto& work = queue_.front().work;
  const auto ranks = static_cast<size_t>(comm_->comm->size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Piece& p = pieces_[i];
    const auto& spec = work[p.work].item.sig->fields().tensors[p.index];
    Output out;
    out.dtype = p.dtype;
    out.shape = spec.shape;
    out.shape[0] = 0;
    for (size_t r = 0; r < ranks; ++r) out.shape[0] += all_sizes_[r * pieces_.size() + i];
    uint64_t bytes = control::dtype_bytes(p.dtype);
    for (int64_t d : out.shape) bytes *= static_cast<uint64_t>(d);
    out.data = allocate(bytes);
    p.out = out.data.get();
    auto& owner = work[p.work].request ? work[p.work].request->outputs : scratch_;
    owner.push_back(std::move(out));
  }
  plan_by_dtype();
}

void Executor::next_collective() {
  if (stage_ == Stage::Sizes) {
    if (step_ == 0) {
      collective_ = {};
      collective_.coll = HVD_ALLGATHER;
      collective_.dtype = HVD_INT64;
      uint64_t n = my_sizes_.size();
      collective_.in = {{my_sizes_.data(), 0, n * sizeof(int64_t)}};
      collective_.out = {{all_sizes_.data(), 0, all_sizes_.size() * sizeof(int64_t)}};
      collective_.counts = {n};
      collective_.deadline_ns = HVD_NO_DEADLINE;
      started_ = !comm_->comm->start(collective_);
      if (started_) return;
    }
    prepare_allgather();
  }
  const bool vectored = comm_->comm->caps() & HVD_CAP_VECTORED;
  while (step_ < plan_.size()) {
    // A backend without lists gets one packed buffer, or one collective per tensor where sizes differ by rank.
    const auto kind = queue_.front().work[0].item.sig->fields().kind;
    if (!vectored && kind == OpKind::Allgather && plan_[step_].size() > 1) {
      std::vector<std::vector<size_t>> singles;
      for (size_t i : plan_[step_]) singles.push_back({i});
      plan_.erase(plan_.begin() + static_cast<ptrdiff_t>(step_));
      plan_.insert(plan_.begin() + static_cast<ptrdiff_t>(step_), singles.begin(), singles.end());
    }
    constexpr int32_t colls[] = {HVD_ALLREDUCE, HVD_ALLGATHER, HVD_BROADCAST, HVD_BARRIER};
    add_collective(colls[static_cast<size_t>(kind)], plan_[step_].empty() ? HVD_UINT8 : pieces_[plan_[step_][0]].dtype,
                   plan_[step_]);
    started_ = !comm_->comm->start(collective_);
    if (started_) return;
    if (is_packed_) scatter_packed();
    ++step_;
  }
  finish_batch();
}

void Executor::add_collective(int32_t coll, int32_t dtype, const std::vector<size_t>& pieces) {
  const auto& fields = queue_.front().work[0].item.sig->fields();
  auto& c = collective_;
  c.coll = coll;
  c.dtype = dtype;
  c.op = fields.reduce_op;
  c.prescale = fields.prescale;
  c.postscale = fields.postscale;
  c.deadline_ns = HVD_NO_DEADLINE;
  c.seq = seq_;
  c.in.clear();
  c.out.clear();
  c.counts.clear();
  c.in_counts.clear();
  c.out_counts.clear();
  c.root = 0;
  if (fields.kind == OpKind::Broadcast)
    while (comm_->members[static_cast<size_t>(c.root)] != fields.root) ++c.root;

  const uint64_t width = control::dtype_bytes(dtype);
  const auto ranks = static_cast<size_t>(comm_->comm->size());
  is_packed_ = pieces.size() > 1 && !(comm_->comm->caps() & HVD_CAP_VECTORED);
  if (is_packed_) {
    uint64_t total = 0;
    for (size_t i : pieces) total += pieces_[i].count;
    packed_.resize(total * width);
    uint64_t at = 0;
    for (size_t i : pieces) {
      std::memcpy(packed_.data() + at, pieces_[i].in, pieces_[i].count * width);
      at += pieces_[i].count * width;
    }
    c.in = c.out = {{packed_.data(), 0, packed_.size()}};
    c.counts = {total};
    return;
  }
  for (size_t i : pieces) {
    const Piece& p = pieces_[i];
    c.in.push_back({p.in, 0, p.count * width});
    c.counts.push_back(p.count);
    uint64_t out_count = p.count;
    if (coll == HVD_ALLGATHER) {
      const auto& shape = queue_.front().work[p.work].item.sig->fields().tensors[p.index].shape;
      uint64_t row = 1;
      for (size_t d = 1; d < shape.size(); ++d) row *= static_cast<uint64_t>(shape[d]);
      out_count = 0;
      for (size_t r = 0; r < ranks; ++r) {
        c.out_counts.push_back(static_cast<uint64_t>(all_sizes_[r * pieces_.size() + i]) * row);
        out_count += c.out_counts.back();
      }
    }
    c.out.push_back({p.out, 0, out_count * width});
  }
}

void Executor::scatter_packed() {
  uint64_t at = 0;
  for (size_t i : plan_[step_]) {
    uint64_t n = pieces_[i].count * control::dtype_bytes(pieces_[i].dtype);
    std::memcpy(pieces_[i].out, packed_.data() + at, n);
    at += n;
  }
}

void Executor::finish_batch() {
  Batch batch = std::move(queue_.front());
  queue_.pop_front();
  stage_ = Stage::Fresh;
  for (auto& w : batch.work)
    if (w.request) events_.completed(w.request);
}

void* Executor::neutral(uint64_t bytes, int32_t dtype, int32_t op) {
  Output o;
  o.data = allocate(bytes);
  fill_neutral(o.data.get(), bytes, dtype, op);
  scratch_.push_back(std::move(o));
  return scratch_.back().data.get();
}

// ------------------------------------------------------------------------------------------------------- the end

void Executor::abort() noexcept {
  std::lock_guard lock(comms_mutex_);
  for (auto& [set, c] : comms_) c.comm->abort();
}

void Executor::settle(int64_t deadline_ns) noexcept {
  if (!comm_ || !comm_->comm->in_flight()) return;
  try {
    comm_->comm->wait(deadline_ns);
  } catch (const plugin::BackendError&) {
    // It has failed, which is what we wait for.
  }
}

void Executor::clear() {
  queue_.clear();
  started_ = false;
  stage_ = Stage::Fresh;
}

}  // namespace hvd::data
