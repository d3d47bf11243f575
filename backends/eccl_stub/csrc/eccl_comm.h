// A communicator of ECCL with the methods that hvd::Comm looks for: collectives on device memory, in stream order.
// Threads: as in hvd/backend_abi.h. Every method runs with the communicator's device current.
#pragma once

#include <atomic>
#include <hvd/backend.hpp>
#include <memory>
#include <mutex>

#include "eccl_api.h"
#include "gcu_device.h"

class EcclComm : public hvd::Comm<EcclComm, GcuDevice> {
 public:
  // Not declared, so hvd-core does without: VECTORED (hvd-core packs lists), split (it creates anew), barrier.
  static constexpr uint64_t caps = HVD_CAP_STREAM | HVD_CAP_MEM_DEVICE | HVD_CAP_GROUP_SAME;
  static constexpr const char* tag = "ECCL";
  static constexpr const char* version = "0.1.0";
  static constexpr hvd_option options[] = {
      hvd::make_option("library", "path", "", "", "ECCL's library; empty: the simulator beside this backend"),
  };

  static void load() { load_eccl(); }
  static const char* vendor_lib() { return eccl_version(); }
  static uint64_t id_bytes() { return sizeof(ecclUniqueId); }
  static void id_create(void* id);
  static hvd_coll_caps query(const hvd::Coll& c);

  explicit EcclComm(const hvd::CommInit& init);
  ~EcclComm();
  bool created();
  void abort();
  void async_error();
  void group_begin();
  void group_end();

  void allreduce(const hvd::Coll& c);
  void reduce(const hvd::Coll& c);
  void broadcast(const hvd::Coll& c);
  void allgather(const hvd::Coll& c);
  void reducescatter(const hvd::Coll& c);
  void alltoall(const hvd::Coll& c);
  void send(const hvd::Coll& c);
  void recv(const hvd::Coll& c);

 private:
  struct Creation;
  void abort_creation();
  std::shared_ptr<Creation> creation_;  // the creation in progress, shared with its thread
  std::mutex ending_;  // abort() and async_error() are called from any thread, also during a collective
  std::atomic<ecclComm_t> comm_{nullptr};
  bool grouped_ = false;  // between group_begin() and group_end()
};
