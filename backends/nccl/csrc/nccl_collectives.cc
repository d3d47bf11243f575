// The collectives of nccl_comm.h as calls of NCCL's, enqueued on the stream in their arguments. Lists go in one group,
// for which NCCL makes one launch.
#include "nccl_comm.h"
#include "nccl_types.h"

namespace {

using Calls = NcclHandle::Calls;

// A group of NCCL's, for a collective that takes several calls; it may lie within a group of the host's.
class Group {
 public:
  explicit Group(Calls& calls) : calls_(calls) { NCCL(ncclGroupStart()); }
  ~Group() {
    if (open_) nccl().ncclGroupEnd();
  }
  Group(const Group&) = delete;
  void end() {
    open_ = false;
    COMM_CALL(calls_, ncclGroupEnd());
  }

 private:
  Calls& calls_;
  bool open_ = true;
};

bool same_place(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

char* address(const hvd_buf& buf) { return static_cast<char*>(buf.base) + buf.offset; }

// For collectives that would overwrite input that has still to be sent.
void refuse_in_place(const hvd::Coll& c, const char* what) {
  for (uint64_t i = 0; i < c.buffers(); ++i) {
    if (c.args().in[i].base == nullptr || !same_place(c.args().in[i], c.args().out[i])) continue;
    throw hvd::Error(HVD_E_UNSUPPORTED, std::string("NCCL cannot do an ") + what + " in place");
  }
}

// Calls calls(taken, stream, i) for each buffer i, within a group if there are several.
template <class F>
void each(const hvd::Coll& c, Calls& taken, void* stream, F&& calls) {
  if (c.buffers() == 1) return calls(taken, stream, uint64_t{0});
  Group group(taken);
  for (uint64_t i = 0; i < c.buffers(); ++i) calls(taken, stream, i);
  group.end();
}

}  // namespace

template <class F>
void NcclComm::run(const hvd::Coll& c, const char* what, F&& calls) {
  void* const stream = c.stream<CudaDevice>();
  handle_->run(what, c.args().deadline_ns, [&](Calls& taken) { each(c, taken, stream, calls); });
  handle_->enqueued_on(static_cast<CUstream>(stream));
}

// The operator with its factors exists while the calls are made.
template <class F>
void NcclComm::reduces(const hvd::Coll& c, const char* what, F&& calls) {
  void* const stream = c.stream<CudaDevice>();
  handle_->run(what, c.args().deadline_ns, [&](Calls& taken) {
    const Reduction op(c, taken.comm(), size(), handle_->abort_flag());
    each(c, taken, stream, [&](Calls& t, void* s, uint64_t i) { calls(t, s, i, op); });
  });
  handle_->enqueued_on(static_cast<CUstream>(stream));
}

// Passes: L2.allreduce, L2.vectored
void NcclComm::allreduce(const hvd::Coll& c) {
  const ncclDataType_t type = nccl_type(c);
  reduces(c, "ncclAllReduce", [&](Calls& calls, void* stream, uint64_t i, ncclRedOp_t op) {
    if (c.count(i) == 0) return;
    COMM_CALL(calls, ncclAllReduce(c.in(i), c.out(i), c.count(i), type, op, calls.comm(), stream));
  });
}

// Passes: L2.reduce
void NcclComm::reduce(const hvd::Coll& c) {
  const ncclDataType_t type = nccl_type(c);
  const int32_t root = c.args().root;
  reduces(c, "ncclReduce", [&](Calls& calls, void* stream, uint64_t i, ncclRedOp_t op) {
    if (c.count(i) == 0) return;
    void* const out = rank() == root ? c.out(i) : nullptr;
    COMM_CALL(calls, ncclReduce(c.in(i), out, c.count(i), type, op, root, calls.comm(), stream));
  });
}

// Passes: L2.broadcast
void NcclComm::broadcast(const hvd::Coll& c) {
  const int32_t root = c.args().root;
  run(c, "ncclBroadcast", [&](Calls& calls, void* stream, uint64_t i) {
    const uint64_t bytes = c.count(i) * c.element_bytes();
    if (bytes == 0) return;
    // The root's `out` may be NULL.
    void* const to = rank() == root && c.args().out[i].base == nullptr ? address(c.args().in[i]) : c.out(i);
    const void* const from = rank() == root ? c.in(i) : to;
    COMM_CALL(calls, ncclBroadcast(from, to, bytes, kBytes, root, calls.comm(), stream));
  });
}

// ncclAllGather needs equal sizes. With a size per rank this is one broadcast from each rank.
//
// Passes: L2.allgather, L2.allgatherv
void NcclComm::allgather(const hvd::Coll& c) {
  const uint64_t width = c.element_bytes();
  run(c, "ncclAllGather", [&](Calls& calls, void* stream, uint64_t i) {
    const bool in_place = same_place(c.args().in[i], c.args().out[i]);  // this rank's part is already in its place
    char* const out = address(c.args().out[i]);
    const uint64_t own = c.count(i) * width;
    if (c.args().out_counts == nullptr) {
      if (own == 0) return;
      const void* from = in_place ? out + own * static_cast<uint64_t>(rank()) : c.in(i);
      COMM_CALL(calls, ncclAllGather(from, out, own, kBytes, calls.comm(), stream));
      return;
    }
    Group group(calls);
    uint64_t at = 0;
    for (int32_t r = 0; r < size(); ++r) {
      const uint64_t bytes = c.out_count(i, r, size(), 0) * width;
      if (bytes == 0) continue;
      const void* from = r == rank() && !in_place ? c.in(i) : out + at;
      COMM_CALL(calls, ncclBroadcast(from, out + at, bytes, kBytes, r, calls.comm(), stream));
      at += bytes;
    }
    group.end();
  });
}

// ncclReduceScatter needs equal sizes. With a size per rank this is one reduction to each rank.
//
// Passes: L2.reducescatter, L2.reducescatterv
void NcclComm::reducescatter(const hvd::Coll& c) {
  refuse_in_place(c, "reducescatter");
  const ncclDataType_t type = nccl_type(c);
  const uint64_t width = c.element_bytes();
  reduces(c, "ncclReduceScatter", [&](Calls& calls, void* stream, uint64_t i, ncclRedOp_t op) {
    if (c.args().out_counts == nullptr) {
      const uint64_t each = c.count(i) / static_cast<uint64_t>(size());
      if (each == 0) return;
      COMM_CALL(calls, ncclReduceScatter(c.in(i), c.out(i), each, type, op, calls.comm(), stream));
      return;
    }
    Group group(calls);
    const char* from = address(c.args().in[i]);
    for (int32_t r = 0; r < size(); ++r) {
      const uint64_t n = c.out_count(i, r, size(), 0);
      if (n == 0) continue;
      COMM_CALL(calls, ncclReduce(from, r == rank() ? c.out(i) : nullptr, n, type, op, r, calls.comm(), stream));
      from += n * width;
    }
    group.end();
  });
}

// Sends and receives in a group, the own part too; newer libraries have an operation of their own, for equal parts
// only.
//
// Passes: L2.alltoall, L2.alltoallv
void NcclComm::alltoall(const hvd::Coll& c) {
  refuse_in_place(c, "alltoall");
  const hvd_coll_args& args = c.args();
  const uint64_t width = c.element_bytes(), ranks = static_cast<uint64_t>(size());
  run(c, "alltoall", [&](Calls& calls, void* stream, uint64_t i) {
    Group group(calls);
    const char* from = address(args.in[i]);
    char* to = address(args.out[i]);
    for (uint64_t r = 0; r < ranks; ++r) {
      const uint64_t each = c.count(i) / ranks;
      const uint64_t out_bytes = (args.in_counts ? args.in_counts[i * ranks + r] : each) * width;
      const uint64_t in_bytes = (args.out_counts ? args.out_counts[i * ranks + r] : each) * width;
      const auto peer = static_cast<int>(r);
      if (out_bytes) COMM_CALL(calls, ncclSend(from, out_bytes, kBytes, peer, calls.comm(), stream));
      if (in_bytes) COMM_CALL(calls, ncclRecv(to, in_bytes, kBytes, peer, calls.comm(), stream));
      from += out_bytes;
      to += in_bytes;
    }
    group.end();
  });
}

// Passes: L2.send_recv
void NcclComm::send(const hvd::Coll& c) {
  run(c, "ncclSend", [&](Calls& calls, void* stream, uint64_t i) {
    const uint64_t bytes = c.count(i) * c.element_bytes();
    if (bytes) COMM_CALL(calls, ncclSend(c.in(i), bytes, kBytes, c.args().peer, calls.comm(), stream));
  });
}

// Passes: L2.send_recv
void NcclComm::recv(const hvd::Coll& c) {
  run(c, "ncclRecv", [&](Calls& calls, void* stream, uint64_t i) {
    const uint64_t bytes = c.count(i) * c.element_bytes();
    if (bytes) COMM_CALL(calls, ncclRecv(c.out(i), bytes, kBytes, c.args().peer, calls.comm(), stream));
  });
}
