// A communicator over OHCL with the methods that hvd::Comm looks for. OHCL's calls block, so they run on a Worker.
#pragma once

#include <ohcl.h>

#include <hvd/backend.hpp>
#include <memory>

#include "worker.h"

class OhclComm : public hvd::Comm<OhclComm> {
 public:
  // Not declared, so hvd-core does without: VECTORED (hvd-core packs lists), split, groups.
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_ONE_HOST;
  static constexpr const char* tag = "OHCL";
  static constexpr const char* version = "0.1.0";
  static const char* vendor_lib() { return ohclVersion(); }
  static hvd_coll_caps query(const hvd::Coll& c);

  explicit OhclComm(const hvd::CommInit& init);
  ~OhclComm();
  void abort();
  void async_error();

  hvd::Work allreduce(const hvd::Coll& c);
  hvd::Work broadcast(const hvd::Coll& c);
  hvd::Work allgather(const hvd::Coll& c);

 private:
  hvd::Work post(const hvd::Coll& c, std::function<int(ohclComm_t, double seconds)> call);

  struct Leave {
    void operator()(ohclComm_t comm) const { ohclLeave(comm); }
  };
  std::unique_ptr<ohclComm, Leave> comm_;
  std::shared_ptr<Worker> worker_;
};
