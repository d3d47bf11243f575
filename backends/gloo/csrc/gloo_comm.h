// A communicator over Gloo: its capabilities, and each collective as a job for the worker.
//
// Threads: as in backend_abi.h. Gloo's calls block, so they run on the worker; calls here return at once, except the
// constructor, which connects to the other ranks.
#pragma once

#include <cstdint>
#include <hvd/backend.hpp>
#include <memory>
#include <string>
#include <vector>

#include "mesh.h"
#include "worker.h"

namespace hvd::gloo_backend {

class GlooComm : public Comm<GlooComm> {
 public:
  static constexpr uint64_t caps = HVD_CAP_REQUEST | HVD_CAP_MEM_HOST | HVD_CAP_PROCESS_LOCAL;
  static constexpr const char* tag = "GLOO";
  static constexpr const char* version = "0.1.0";
  static constexpr hvd_option options[] = {
      make_option("iface", "str", "", "names, networks or addresses",
                  "Where this host is reached: a comma list of interfaces (eth0), networks (10.0.0.0/8) or addresses. "
                  "Empty: HOROVOD_GLOO_IFACE, else the address in a network that the other hosts share."),
      make_option("algorithm", "enum", "auto", "auto, ring, bcube",
                  "How an allreduce goes. auto: bcube for small ones among four ranks or more, else ring. Rank 0's "
                  "value counts."),
      make_option(
          "timeout_s", "int", "0", "0..86400",
          "Seconds that an operation may wait for one message of a peer; 0: until the operation's own deadline. "
          "The default can also be set by HOROVOD_GLOO_TIMEOUT_SECONDS."),
  };
  static const char* vendor_lib();
  static std::string info(const std::string& key);
  static hvd_coll_caps query(const Coll& c);

  explicit GlooComm(const CommInit& init);
  ~GlooComm();

  void abort();
  void async_error();

  Work allreduce(const Coll& c);
  Work reduce(const Coll& c);
  Work broadcast(const Coll& c);
  Work allgather(const Coll& c);
  Work alltoall(const Coll& c);
  Work barrier(const Coll& c);

 private:
  Work post(const char* what, const Coll& c, Worker::Body body);
  uint32_t next_tag(const Coll& c, const std::vector<uint64_t>& sizes);
  bool use_bcube(uint64_t bytes) const;
  void check_root(const Coll& c) const;

  Settings settings_;
  std::shared_ptr<Mesh> mesh_;      // NULL in a communicator of one
  std::shared_ptr<Worker> worker_;  // NULL as well
  uint64_t sequence_ = 0;
};

}  // namespace hvd::gloo_backend
