// The nccl* functions for operations: arguments are checked, and memory is found.
#include <cstring>

#include "addresses.h"
#include "arithmetic.h"
#include "counters.h"
#include "nccl_comm.h"
#include "settings.h"

namespace {

using namespace cusim;
using sim::Operation;
using Kind = sim::Operation::Kind;

constexpr int kFloat8Version = 22400, kFloat8Arch = 90;

bool is_integer(ncclDataType_t type) { return type < ecclFloat16; }

bool is_float8(ncclDataType_t type) { return type >= sim::kFloat8e4m3; }

// The common part of all operations: fills an Operation step by step, until an argument is wrong.
class Call {
 public:
  Call(Kind kind, size_t count, ncclDataType_t type, ncclComm_t comm, CUstream stream) {
    op_.kind = kind;
    op_.count = count;
    op_.type = type;
    check(comm, stream);
  }

  Call& with_root(int root) {
    op_.root = root;
    if (good() && (root < 0 || root >= nccl_->size)) wrong(ncclInvalidArgument, "invalid root or peer");
    return *this;
  }

  // Averages of floats are sums of products with 1 / ranks, which is a number of that type.
  Call& with_op(ncclRedOp_t op) {
    op_.how.op = op;
    op_.how.by_device = true;
    if (!good()) return *this;
    if (is_float8(op_.type) && settings().arch < kFloat8Arch) {
      wrong(ncclInvalidArgument, "FP8 reduction support begins with sm90 capable devices.");
    } else if (op == ecclAvg && !is_integer(op_.type)) {
      op_.scalar = {op_.type, sim::rounded_to(op_.type, 1.0 / nccl_->size), {}};
      op_.how = {ecclSum, true, true};
    } else if (op < ecclSum || op >= ecclNumOps) {
      if (!nccl_->comm()->find_scalar(op, &op_.scalar)) {
        wrong(ncclInvalidArgument, "invalid reduction operation");
      } else if (op_.scalar.type != op_.type) {
        wrong(ncclInvalidArgument, "the reduction was made for another data type");
      }
      op_.how = {ecclSum, true, true};
    }
    return *this;
  }

  // `blocks` times count elements are read from, or written to. Not looked at where this rank has no part in it.
  Call& reads(const void* p, int blocks, bool takes_part = true) { return memory(p, blocks, takes_part, &op_.send); }
  Call& writes(void* p, int blocks, bool takes_part = true) { return memory(p, blocks, takes_part, &op_.recv); }
  Call& outgoing() {
    op_.outgoing = true;
    return *this;
  }

  bool is_root() const { return good() && nccl_->rank == op_.root; }
  int ranks() const { return good() ? nccl_->size : 1; }

  ncclResult_t submit() {
    if (!good()) return result_;
    // An empty collective is nothing, on this rank alone. Messages meet their other end.
    if (op_.count == 0 && op_.kind != Kind::kMessage) return ncclSuccess;
    return cusim::submit(nccl_, stream_, std::move(op_));
  }

 private:
  bool good() const { return result_ == ncclSuccess; }
  void wrong(ncclResult_t code, const std::string& text) { result_ = refuse(code, text); }

  void check(ncclComm_t comm, CUstream stream) {
    nccl_ = find(comm);
    if (nccl_ == nullptr) {
      return wrong(ncclInvalidArgument, "comm argument is NULL, or a communicator that was destroyed or aborted");
    }
    result_ = nccl_->ready();
    if (!good()) return;
    const int broken = nccl_->context->broken;
    if (broken != 0) return wrong(ncclUnhandledCudaError, "Cuda failure " + std::to_string(broken));
    push(nccl_->context);  // NCCL does so for the time of a call
    stream_ = find(stream);
    pop();
    if (stream_ == nullptr || stream_->context != nccl_->context) {
      return wrong(ncclUnhandledCudaError, "Cuda failure 'invalid resource handle'");
    }
    CUstreamCaptureStatus status;
    capture_status(*stream_, &status);
    if (status != kNotCapturing) return wrong(ncclInvalidUsage, "collectives in a captured stream are not simulated");
    const size_t width = sim::width_of(op_.type);
    if (width == 0 || (is_float8(op_.type) && settings().nccl_version < kFloat8Version)) {
      return wrong(ncclInvalidArgument, "invalid type " + std::to_string(op_.type));
    }
    if (op_.count > SIZE_MAX / width / static_cast<size_t>(nccl_->size)) wrong(ncclInvalidArgument, "invalid count");
  }

  Call& memory(const void* p, int blocks, bool takes_part, sim::Span* span) {
    if (!good() || !takes_part || op_.count == 0) return *this;
    const size_t bytes = op_.count * sim::width_of(op_.type) * static_cast<size_t>(blocks);
    if (!reachable(p, bytes, span)) {
      wrong(ncclInvalidArgument, "a buffer is no device memory, or shorter than the operation");
    } else if (span->memory->on_device() && span->memory->device != nccl_->context->device) {
      wrong(ncclInvalidArgument, "a buffer is memory of another device");
    }
    return *this;
  }

  ncclResult_t result_ = ncclSuccess;
  NcclRef nccl_;
  StreamRef stream_;
  Operation op_{};
};

}  // namespace

SIM_EXPORT ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kAllReduce, count, type, comm, stream);
  return call.with_op(op).reads(send, 1).writes(recv, 1).submit();
}

SIM_EXPORT ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                                      ncclComm_t comm, CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kBroadcast, count, type, comm, stream);
  call.with_root(root);
  return call.reads(send, 1, call.is_root()).writes(recv, 1).submit();
}

SIM_EXPORT ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   int root, ncclComm_t comm, CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kReduce, count, type, comm, stream);
  call.with_root(root).with_op(op);
  return call.reads(send, 1).writes(recv, 1, call.is_root()).submit();
}

SIM_EXPORT ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                      CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kAllGather, count, type, comm, stream);
  return call.reads(send, 1).writes(recv, call.ranks()).submit();
}

SIM_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                                          ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kReduceScatter, count, type, comm, stream);
  return call.with_op(op).reads(send, call.ranks()).writes(recv, 1).submit();
}

SIM_EXPORT ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kMessage, count, type, comm, stream);
  return call.with_root(peer).outgoing().reads(send, 1).submit();
}

SIM_EXPORT ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 CUstream stream) {
  SIM_CALLED;
  Call call(Kind::kMessage, count, type, comm, stream);
  return call.with_root(peer).writes(recv, 1).submit();
}

SIM_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, int residence,
                                                 ncclComm_t handle) {
  SIM_CALLED;
  const NcclRef nccl = find(handle);
  if (nccl == nullptr) return refuse(ncclInvalidArgument, "comm argument is NULL");
  const ncclResult_t result = nccl->ready();
  if (result != ncclSuccess) return result;
  const size_t width = sim::width_of(type);
  if (op == nullptr || scalar == nullptr || width == 0) return refuse(ncclInvalidArgument, "op, scalar or type");
  sim::Scalar made{type, 1.0, {}};
  if (residence == ecclScalarHostImmediate) {
    made.value = sim::scalar_of(type, scalar);
  } else if (residence != ecclScalarDevice || !reachable(scalar, width, &made.source)) {
    return refuse(ncclInvalidArgument, "the scalar is no device memory");
  }
  *op = nccl->comm()->add_scalar(std::move(made));
  return ncclSuccess;
}

SIM_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  SIM_CALLED;
  const NcclRef nccl = find(handle);
  if (nccl == nullptr || nccl->comm() == nullptr || !nccl->comm()->remove_scalar(op)) {
    return refuse(ncclInvalidArgument, "no such reduction");
  }
  return ncclSuccess;
}
