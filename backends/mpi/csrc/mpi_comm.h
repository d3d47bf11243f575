// A communicator of this backend: its capabilities, and its collectives as MPI calls.
#pragma once

#include <hvd/backend.hpp>
#include <memory>

#include "mpi_api.h"
#include "mpi_device.h"
#include "mpi_operation.h"

class MpiComm : public hvd::Comm<MpiComm> {
 public:
  // Not declared, so hvd-core does without: VECTORED (hvd-core packs lists), split (it creates anew).
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_MEM_DEVICE;
  static inline const char* device_types = "cpu";  // load() sets all types
  static constexpr const char* tag = "MPI";
  static constexpr const char* version = "0.1.0";
  static constexpr hvd_option options[] = {
      hvd::make_option("library", "path", "", "",
                       "MPI's library (libmpi.so.40, libmpi.so.12); empty: the loaded one, else the launcher's"),
      hvd::make_option("blocking_from", "size", "0", "0..",
                       "bytes from which on a collective is a blocking call of MPI's, not a nonblocking one"),
      hvd::make_option("devices", "str", "auto", "",
                       "device types whose memory this MPI reads, such as 'cuda'; auto: as the library says; none"),
  };

  static void load();
  static const char* vendor_lib() { return mpi_vendor_lib(); }
  static hvd_coll_caps query(const hvd::Coll& c);
  hvd_coll_caps query_made(const hvd::Coll& c) const;
  static std::string info(const std::string& key);

  explicit MpiComm(const hvd::CommInit& init);
  void abort() { channel_->abort(); }

  hvd::Work allreduce(const hvd::Coll& c);
  hvd::Work reduce(const hvd::Coll& c);
  hvd::Work broadcast(const hvd::Coll& c);
  hvd::Work allgather(const hvd::Coll& c);
  hvd::Work reducescatter(const hvd::Coll& c);
  hvd::Work alltoall(const hvd::Coll& c);
  hvd::Work send(const hvd::Coll& c);
  hvd::Work recv(const hvd::Coll& c);
  hvd::Work barrier(const hvd::Coll& c);

 private:
  std::shared_ptr<Operation> prepare(const hvd::Coll& c) const;
  void reducing(Operation& o, const hvd::Coll& c, uint64_t in_count, void* result, uint64_t result_count) const;
  hvd::Work go(const std::shared_ptr<Operation>& o);

  std::shared_ptr<Channel> channel_;
  std::string device_type_;  // "" for host memory
  bool reads_device_ = false, any_thread_ = false;
  std::unique_ptr<DeviceCopy> device_copy_;
};
