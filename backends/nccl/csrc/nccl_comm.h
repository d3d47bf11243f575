// A communicator of NCCL's with the methods that hvd::Comm looks for: collectives on memory of CUDA devices, in stream
// order. Threads: as in hvd/backend_abi.h. Every method runs with the communicator's device current.
#pragma once

#include <hvd/backend.hpp>
#include <memory>
#include <string>

#include "cuda_device.h"
#include "nccl_agreement.h"
#include "nccl_api.h"
#include "nccl_handle.h"

class NcclComm : public hvd::Comm<NcclComm, CudaDevice> {
 public:
  // Not declared, so hvd-core does without: barrier.
  static constexpr uint64_t caps =
      HVD_CAP_STREAM | HVD_CAP_MEM_DEVICE | HVD_CAP_VECTORED | HVD_CAP_GROUP_SAME | HVD_CAP_GROUP_MIXED;
  static constexpr const char* tag = "NCCL";
  static constexpr const char* version = "0.1.0";
  static constexpr hvd_option options[] = {
      hvd::make_option("library", "path", "", "",
                       "NCCL's library (libnccl.so.2); empty: the loaded one, else the wheel's, else the system's"),
      hvd::make_option("cuda_library", "path", "", "", "the CUDA driver's library; empty: libcuda.so.1"),
      hvd::make_option("pack_below", "size", "4m", "0..",
                       "bytes from which on a tensor is reduced where it lies; smaller ones are packed first"),
      hvd::make_option(
          "minmax", "enum", "exact", "exact, native",
          "minima and maxima of floats: exact keeps NaN, composed by hvd-core; native is NCCL's own, faster, "
          "and loses it"),
      hvd::make_option("nonblocking", "bool", "0", "",
                       "NCCL's non-blocking communicators: an operation that waits for a peer to connect ends at an "
                       "abort without delay, as elastic jobs need; each costs NCCL a thread"),
  };

  static void load();
  static const char* vendor_lib() { return nccl_vendor_lib(); }
  static std::string info(const std::string& key) { return nccl_fact(key); }
  static uint64_t id_bytes() { return sizeof(ncclUniqueId); }
  static void id_create(void* id);
  // The answer for any communicator, and the answer of this one.
  static hvd_coll_caps query(const hvd::Coll& c);
  hvd_coll_caps query_made(const hvd::Coll& c) const;

  explicit NcclComm(const hvd::CommInit& init);
  NcclComm(NcclComm& parent, const hvd::CommInit& init);
  ~NcclComm() { handle_->end(); }
  bool created() { return handle_->created(); }
  void finalize(int64_t deadline_ns) { handle_->finalize(deadline_ns); }
  void abort() { handle_->abort(); }
  void async_error() { handle_->async_error(); }
  void group_begin() { handle_->group_begin(); }
  void group_end() { handle_->group_end(); }
  void* mem_register(const hvd_buf& buf);
  void mem_deregister(void* registered);

  void allreduce(const hvd::Coll& c);
  void reduce(const hvd::Coll& c);
  void broadcast(const hvd::Coll& c);
  void allgather(const hvd::Coll& c);
  void reducescatter(const hvd::Coll& c);
  void alltoall(const hvd::Coll& c);
  void send(const hvd::Coll& c);
  void recv(const hvd::Coll& c);

 private:
  template <class F>
  void run(const hvd::Coll& c, const char* what, F&& calls);
  template <class F>
  void reduces(const hvd::Coll& c, const char* what, F&& calls);

  const std::shared_ptr<NcclHandle> handle_ = std::make_shared<NcclHandle>();
  Agreement agreed_;
};
