// The eccl* functions for operations (eccl.h): the library's limits are enforced here, and memory is found.
#include <eccl.h>

#include <cstdint>

#include "communicators.h"
#include "device.h"
#include "group.h"

using sim::Operation;
using sim::refuse;
using Kind = sim::Operation::Kind;

namespace {

// The common part of all operations: fills an Operation step by step, until an argument is wrong.
class Call {
 public:
  Call(Kind kind, size_t count, ecclDataType_t type, ecclComm_t comm, topsStream_t stream) {
    op_.kind = kind;
    op_.count = count;
    op_.type = type;
    check(comm, stream);
  }

  Call& with_root(int root) {
    op_.root = root;
    if (good() && (root < 0 || root >= comm_->size())) wrong(ecclInvalidArgument, "no such rank");
    return *this;
  }

  Call& with_op(ecclRedOp_t op) {
    op_.how.op = op;
    if (!good() || (op >= ecclSum && op < ecclNumOps)) return *this;
    if (!comm_->find_scalar(op, &op_.scalar)) {
      wrong(ecclInvalidArgument, "no such reduction");
    } else if (op_.scalar.type != op_.type) {
      wrong(ecclInvalidArgument, "the reduction was made for another data type");
    } else {
      op_.how = {ecclSum, true};
    }
    return *this;
  }

  // `blocks` times count elements are read from, or written to. Not looked at where this rank has no part in it.
  Call& reads(const void* p, int blocks, bool takes_part = true) {
    return memory(p, blocks, takes_part, &op_.send, "sendbuff");
  }
  Call& writes(void* p, int blocks, bool takes_part = true) {
    return memory(p, blocks, takes_part, &op_.recv, "recvbuff");
  }
  Call& outgoing() {
    op_.outgoing = true;
    return *this;
  }

  bool is_root() const { return good() && comm_->rank() == op_.root; }
  int ranks() const { return good() ? comm_->size() : 1; }

  ecclResult_t submit() { return good() ? sim::submit(std::move(comm_), std::move(stream_), std::move(op_)) : result_; }

 private:
  bool good() const { return result_ == ecclSuccess; }
  void wrong(ecclResult_t code, const std::string& text) { result_ = refuse(code, text); }

  void check(ecclComm_t comm, topsStream_t stream) {
    result_ = sim::enter_eccl();
    if (result_ != ecclSuccess) return;
    comm_ = sim::find_comm(comm);
    if (comm_ == nullptr) return wrong(ecclInvalidArgument, "not a communicator, or one that was destroyed or aborted");
    if (comm_->state() != ecclSuccess) return wrong(comm_->state(), comm_->failure_text());
    if (comm_->device() != sim::current_device()) {
      return wrong(ecclInvalidUsage, "the communicator is of device " + std::to_string(comm_->device()) +
                                         ", but device " + std::to_string(sim::current_device()) +
                                         " is current on this thread");
    }
    stream_ = sim::find_stream(stream);
    if (stream_ == nullptr) return wrong(ecclInvalidArgument, "not a stream");
    if (stream_->device() != comm_->device()) return wrong(ecclInvalidUsage, "the stream is of another device");
    if (sim::width_of(op_.type) == 0 || op_.type >= ecclNumTypes)
      return wrong(ecclInvalidArgument, "no such data type");
    if (op_.count > SIZE_MAX / sim::width_of(op_.type) / static_cast<size_t>(comm_->size())) {
      return wrong(ecclInvalidArgument, "count is too large");
    }
    if (sim::is_64_bit(op_.type) && op_.kind != Kind::kBroadcast && op_.kind != Kind::kAllGather) {
      wrong(ecclInvalidArgument, std::string(sim::describe(op_.kind)) + " of " + sim::name_of(op_.type) +
                                     ": only Broadcast and AllGather have 64-bit types");
    }
  }

  Call& memory(const void* p, int blocks, bool takes_part, sim::Span* span, const char* which) {
    if (!good() || !takes_part || op_.count == 0) return *this;
    const size_t bytes = op_.count * sim::width_of(op_.type) * static_cast<size_t>(blocks);
    const topsError_t error = sim::device_span(p, bytes, comm_->device(), span);
    if (error == topsErrorInvalidValue) {
      wrong(ecclInvalidArgument, std::string(which) + " is shorter than the operation, or of another device");
    } else if (error != topsSuccess) {
      wrong(ecclInvalidArgument, std::string(which) + " is not device memory");
    }
    return *this;
  }

  ecclResult_t result_ = ecclSuccess;
  sim::CommRef comm_;
  sim::StreamRef stream_;
  Operation op_{};
};

}  // namespace

extern "C" {

ecclResult_t ecclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ecclDataType_t datatype, ecclRedOp_t op,
                           ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kAllReduce, count, datatype, comm, stream);
  return call.with_op(op).reads(sendbuff, 1).writes(recvbuff, 1).submit();
}

ecclResult_t ecclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ecclDataType_t datatype, int root,
                           ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kBroadcast, count, datatype, comm, stream);
  call.with_root(root);
  return call.reads(sendbuff, 1, call.is_root()).writes(recvbuff, 1).submit();
}

ecclResult_t ecclReduce(const void* sendbuff, void* recvbuff, size_t count, ecclDataType_t datatype, ecclRedOp_t op,
                        int root, ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kReduce, count, datatype, comm, stream);
  call.with_root(root).with_op(op);
  return call.reads(sendbuff, 1).writes(recvbuff, 1, call.is_root()).submit();
}

ecclResult_t ecclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ecclDataType_t datatype,
                           ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kAllGather, sendcount, datatype, comm, stream);
  return call.reads(sendbuff, 1).writes(recvbuff, call.ranks()).submit();
}

ecclResult_t ecclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ecclDataType_t datatype,
                               ecclRedOp_t op, ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kReduceScatter, recvcount, datatype, comm, stream);
  return call.with_op(op).reads(sendbuff, call.ranks()).writes(recvbuff, 1).submit();
}

ecclResult_t ecclGather(const void* sendbuff, void* recvbuff, size_t sendcount, ecclDataType_t datatype, int root,
                        ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kGather, sendcount, datatype, comm, stream);
  call.with_root(root);
  return call.reads(sendbuff, 1).writes(recvbuff, call.ranks(), call.is_root()).submit();
}

ecclResult_t ecclScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ecclDataType_t datatype, int root,
                         ecclComm_t comm, topsStream_t stream) {
  Call call(Kind::kScatter, recvcount, datatype, comm, stream);
  call.with_root(root);
  return call.reads(sendbuff, call.ranks(), call.is_root()).writes(recvbuff, 1).submit();
}

ecclResult_t ecclSend(const void* sendbuff, size_t count, ecclDataType_t datatype, int peer, ecclComm_t comm,
                      topsStream_t stream) {
  Call call(Kind::kMessage, count, datatype, comm, stream);
  return call.with_root(peer).outgoing().reads(sendbuff, 1).submit();
}

ecclResult_t ecclRecv(void* recvbuff, size_t count, ecclDataType_t datatype, int peer, ecclComm_t comm,
                      topsStream_t stream) {
  Call call(Kind::kMessage, count, datatype, comm, stream);
  return call.with_root(peer).writes(recvbuff, 1).submit();
}

ecclResult_t ecclRedOpCreatePreMulSum(ecclRedOp_t* op, void* scalar, ecclDataType_t datatype,
                                      ecclScalarResidence_t residence, ecclComm_t handle) {
  const ecclResult_t error = sim::enter_eccl();
  if (error != ecclSuccess) return error;
  const sim::CommRef comm = sim::find_comm(handle);
  if (comm == nullptr) return refuse(ecclInvalidArgument, "not a communicator, or one that was destroyed or aborted");
  const size_t width = sim::width_of(datatype);
  if (op == nullptr || scalar == nullptr || width == 0 || datatype >= ecclNumTypes)
    return refuse(ecclInvalidArgument, "op, scalar or datatype");
  if (sim::is_64_bit(datatype)) return refuse(ecclInvalidArgument, "64-bit types are not reduced");
  sim::Scalar made{datatype, 1.0, {}};
  if (residence == ecclScalarHostImmediate) {
    made.value = sim::scalar_of(datatype, scalar);
  } else if (residence != ecclScalarDevice ||
             sim::device_span(scalar, width, comm->device(), &made.source) != topsSuccess) {
    return refuse(ecclInvalidArgument, "the scalar is not device memory of the communicator's device");
  }
  *op = comm->add_scalar(std::move(made));
  return ecclSuccess;
}

ecclResult_t ecclRedOpDestroy(ecclRedOp_t op, ecclComm_t handle) {
  const sim::CommRef comm = sim::find_comm(handle);
  if (comm == nullptr || !comm->remove_scalar(op)) return refuse(ecclInvalidArgument, "no such reduction");
  return ecclSuccess;
}

}  // extern "C"
