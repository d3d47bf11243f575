// See eccl_comm.h. A collective is enqueued on the stream in its arguments, and the method returns at once.
#include "eccl_comm.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "eccl_types.h"

// ---------------------------------------------------------------------------------------------- creation and the end

// ecclCommInitRank blocks until all ranks have called it, and has no deadline. So it runs on a thread of its own, and
// the host calls created() until that thread has finished or the deadline has passed. A thread that finishes after that
// destroys the communicator.
struct EcclComm::Creation {
  std::mutex mutex;
  bool finished = false, abandoned = false;
  ecclResult_t result = ecclSuccess;
  std::string detail;
  ecclComm_t comm = nullptr;
  int64_t deadline_ns = 0;
};

// Passes: L2.allreduce
void EcclComm::id_create(void* id) { ECCL(ecclGetUniqueId(static_cast<ecclUniqueId*>(id))); }

// Passes: L2.allreduce, L2.process_sets
EcclComm::EcclComm(const hvd::CommInit& init) : Comm(init), creation_(std::make_shared<Creation>()) {
  creation_->deadline_ns = init.deadline_ns;
  ecclUniqueId id;
  std::memcpy(&id, init.id.data(), sizeof(id));
  std::thread([creation = creation_, id, rank = rank(), size = size(), ordinal = device().ordinal()] {
    hvd::thread_enter("eccl create");
    eccl().topsSetDevice(ordinal);
    ecclComm_t comm = nullptr;
    const ecclResult_t result = eccl().ecclCommInitRank(&comm, size, id, rank);
    std::lock_guard<std::mutex> lock(creation->mutex);
    creation->finished = true;
    creation->result = result;
    if (result != ecclSuccess) {
      creation->detail = eccl().ecclGetLastError(nullptr);
    } else if (creation->abandoned) {
      eccl().ecclCommAbort(comm);
    } else {
      creation->comm = comm;
    }
  }).detach();
}

// Passes: L2.allreduce, L4.create_deadline
bool EcclComm::created() {
  std::lock_guard<std::mutex> lock(creation_->mutex);
  if (!creation_->finished) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    if (creation_->deadline_ns <= 0 || std::chrono::nanoseconds(now).count() < creation_->deadline_ns) return false;
    throw hvd::Error(HVD_E_TIMEOUT, "not all ranks came to ecclCommInitRank in time", HVD_EF_COMM_DEAD);
  }
  check_eccl(creation_->result, "ecclCommInitRank");
  std::lock_guard<std::mutex> ending(ending_);
  comm_ = std::exchange(creation_->comm, nullptr);
  return true;
}

// Passes: L4.recreate
EcclComm::~EcclComm() {
  abort_creation();
  if (comm_ != nullptr) eccl().ecclCommDestroy(comm_);
}

// Passes: L4.abort
void EcclComm::abort() {
  abort_creation();
  std::lock_guard<std::mutex> lock(ending_);
  if (comm_ != nullptr) eccl().ecclCommAbort(comm_.exchange(nullptr));
}

void EcclComm::abort_creation() {
  std::lock_guard<std::mutex> lock(creation_->mutex);
  creation_->abandoned = true;
  if (creation_->comm != nullptr) eccl().ecclCommAbort(std::exchange(creation_->comm, nullptr));
}

// Passes: L4.async_error
void EcclComm::async_error() {
  std::lock_guard<std::mutex> lock(ending_);
  if (comm_ == nullptr) return;
  ecclResult_t result = ecclSuccess;
  ECCL(ecclCommGetAsyncError(comm_, &result));
  if (result != ecclInProgress) check_eccl(result, "an earlier operation", comm_);
}

// ------------------------------------------------------------------------------------------------------------ groups

namespace {

// A group of ECCL's, for a collective that takes several calls. Groups may be nested.
class Group {
 public:
  Group() { ECCL(ecclGroupStart()); }
  ~Group() {
    if (open_) eccl().ecclGroupEnd();
  }
  void end() {
    open_ = false;
    ECCL(ecclGroupEnd());
  }

 private:
  bool open_ = true;
};

bool same_buffer(const hvd_buf& a, const hvd_buf& b) { return a.base == b.base && a.offset == b.offset; }

// For collectives that would overwrite input that has still to be sent.
void refuse_in_place(const hvd::Coll& c, const char* what) {
  if (!same_buffer(c.args().in[0], c.args().out[0])) return;
  throw hvd::Error(HVD_E_UNSUPPORTED, std::string("ECCL cannot do an ") + what + " in place");
}

}  // namespace

// Passes: L2.groups
void EcclComm::group_begin() {
  ECCL(ecclGroupStart());
  grouped_ = true;
}

// Passes: L2.groups
void EcclComm::group_end() {
  grouped_ = false;
  ECCL(ecclGroupEnd());
}

// ------------------------------------------------------------------------------------------------------- collectives

// Passes: L2.allreduce, L0.query
hvd_coll_caps EcclComm::query(const hvd::Coll& c) {
  hvd_coll_caps caps{};
  const bool reduces = c.kind() == HVD_ALLREDUCE || c.kind() == HVD_REDUCE || c.kind() == HVD_REDUCESCATTER;
  if (reduces && !eccl_reduces(c)) return caps;
  caps.support = HVD_NATIVE;
  caps.score = 80;
  return caps;
}

// Passes: L2.allreduce
void EcclComm::allreduce(const hvd::Coll& c) {
  const uint64_t n = c.count(0), bytes = n * c.element_bytes();
  if (n == 0) return;
  const Reduction op(c, comm_, size());
  ECCL(ecclAllReduce(GcuDevice::address(c.args().in[0], bytes), GcuDevice::address(c.args().out[0], bytes), n,
                     eccl_type(c), op, comm_, c.stream<GcuDevice>()));
}

// Passes: L2.reduce
void EcclComm::reduce(const hvd::Coll& c) {
  const uint64_t n = c.count(0), bytes = n * c.element_bytes();
  if (n == 0) return;
  const Reduction op(c, comm_, size());
  void* out = rank() == c.args().root ? GcuDevice::address(c.args().out[0], bytes) : nullptr;
  ECCL(ecclReduce(GcuDevice::address(c.args().in[0], bytes), out, n, eccl_type(c), op, c.args().root, comm_,
                  c.stream<GcuDevice>()));
}

// Passes: L2.broadcast
void EcclComm::broadcast(const hvd::Coll& c) {
  const uint64_t bytes = c.count(0) * c.element_bytes();
  if (bytes == 0) return;
  const hvd_buf& in = c.args().in[0];
  const hvd_buf& out = c.args().out[0];
  const bool root = rank() == c.args().root;
  void* const to = GcuDevice::address(root && out.base == nullptr ? in : out, bytes);
  ECCL(ecclBroadcast(root ? GcuDevice::address(in, bytes) : to, to, bytes, kBytes, c.args().root, comm_,
                     c.stream<GcuDevice>()));
}

// ecclAllGather needs equal sizes. With a size per rank this is one broadcast from each rank. In the host's group it
// always is, because a group of ECCL's may hold one kind of operation only.
//
// Passes: L2.allgather, L2.allgatherv
void EcclComm::allgather(const hvd::Coll& c) {
  const uint64_t width = c.element_bytes(), own = c.count(0) * width;
  const hvd_buf& in = c.args().in[0];
  const hvd_buf& out = c.args().out[0];
  const bool in_place = same_buffer(in, out);  // this rank's part is already in its place in `out`
  const auto stream = c.stream<GcuDevice>();
  if (c.args().out_counts == nullptr && !grouped_) {
    if (own == 0) return;
    const void* from = in_place ? GcuDevice::address(out, own, own * rank()) : GcuDevice::address(in, own);
    ECCL(ecclAllGather(from, GcuDevice::address(out, own * size()), own, kBytes, comm_, stream));
    return;
  }
  Group group;
  uint64_t at = 0;
  for (int32_t r = 0; r < size(); ++r) {
    const uint64_t bytes = c.out_count(0, r, size(), c.count(0)) * width;
    if (bytes == 0) continue;
    void* to = GcuDevice::address(out, bytes, at);
    const void* from = r == rank() && !in_place ? GcuDevice::address(in, bytes) : to;
    ECCL(ecclBroadcast(from, to, bytes, kBytes, r, comm_, stream));
    at += bytes;
  }
  group.end();
}

// ecclReduceScatter needs equal sizes. With a size per rank, and always in the host's group, this is one reduction to
// each rank.
//
// Passes: L2.reducescatter, L2.reducescatterv
void EcclComm::reducescatter(const hvd::Coll& c) {
  refuse_in_place(c, "reducescatter");
  const uint64_t width = c.element_bytes(), each = c.count(0) / size();
  const hvd_buf& in = c.args().in[0];
  const hvd_buf& out = c.args().out[0];
  const Reduction op(c, comm_, size());
  const auto stream = c.stream<GcuDevice>();
  if (c.args().out_counts == nullptr && !grouped_) {
    if (each == 0) return;
    ECCL(ecclReduceScatter(GcuDevice::address(in, each * width * size()), GcuDevice::address(out, each * width), each,
                           eccl_type(c), op, comm_, stream));
    return;
  }
  Group group;
  uint64_t at = 0;
  for (int32_t r = 0; r < size(); ++r) {
    const uint64_t n = c.out_count(0, r, size(), each);
    if (n == 0) continue;
    void* to = r == rank() ? GcuDevice::address(out, n * width) : nullptr;
    ECCL(ecclReduce(GcuDevice::address(in, n * width, at), to, n, eccl_type(c), op, r, comm_, stream));
    at += n * width;
  }
  group.end();
}

// ECCL has no alltoall: a group of sends and receives.
//
// Passes: L2.alltoall, L2.alltoallv
void EcclComm::alltoall(const hvd::Coll& c) {
  refuse_in_place(c, "alltoall");
  const hvd_coll_args& args = c.args();
  const uint64_t width = c.element_bytes(), each = c.count(0) / size();
  const auto stream = c.stream<GcuDevice>();
  Group group;
  uint64_t from = 0, to = 0;
  for (int32_t r = 0; r < size(); ++r) {
    const uint64_t out_bytes = (args.in_counts ? args.in_counts[r] : each) * width;
    const uint64_t in_bytes = c.out_count(0, r, size(), each) * width;
    if (r == rank()) {
      const hvd_buf dst{args.out[0].base, args.out[0].offset + to, in_bytes};
      const hvd_buf src{args.in[0].base, args.in[0].offset + from, out_bytes};
      if (in_bytes) device().copy(stream, dst, src, in_bytes);
    } else {
      if (out_bytes)
        ECCL(ecclSend(GcuDevice::address(args.in[0], out_bytes, from), out_bytes, kBytes, r, comm_, stream));
      if (in_bytes) ECCL(ecclRecv(GcuDevice::address(args.out[0], in_bytes, to), in_bytes, kBytes, r, comm_, stream));
    }
    from += out_bytes;
    to += in_bytes;
  }
  group.end();
}

// Passes: L2.send_recv
void EcclComm::send(const hvd::Coll& c) {
  const uint64_t bytes = c.count(0) * c.element_bytes();
  if (bytes == 0) return;
  ECCL(ecclSend(GcuDevice::address(c.args().in[0], bytes), bytes, kBytes, c.args().peer, comm_, c.stream<GcuDevice>()));
}

// Passes: L2.send_recv
void EcclComm::recv(const hvd::Coll& c) {
  const uint64_t bytes = c.count(0) * c.element_bytes();
  if (bytes == 0) return;
  ECCL(
      ecclRecv(GcuDevice::address(c.args().out[0], bytes), bytes, kBytes, c.args().peer, comm_, c.stream<GcuDevice>()));
}
