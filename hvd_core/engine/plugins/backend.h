// A loaded backend: its checked tables, and the engine's calls into them.
//
// Backends are shared and live as long as the process: a library is opened, and its tables are checked, once for all
// engines. All members are const and may be called from any thread; create_comm waits for other ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plugins/communicator.h"
#include "engine/plugins/errors.h"
#include "engine/plugins/host_api.h"
#include "hvd/backend_abi.h"

namespace hvd::plugins {

// One option that a backend declares, in its own texts; a missing text is "".
struct Option {
  std::string name, type, fallback, range, doc;
};

// A device and the table that opened it; both null for host memory.
struct OpenDevice {
  hvd_device handle = nullptr;
  const hvd_device_api* api = nullptr;
};

class Backend : public std::enable_shared_from_this<Backend> {
 public:
  // Both throw LoadError, or BackendError if the backend answers that it cannot work here. The same library or entry
  // function returns the same object. `origin` replaces the path in messages. A path "entry:0x..." is the address of an
  // entry function in this process.
  static std::shared_ptr<Backend> load_library(const std::string& path, const std::string& expected_name);
  static std::shared_ptr<Backend> load_entry(hvd_backend_entry_fn entry, const std::string& expected_name,
                                             const std::string& origin);

  Backend(const hvd_backend_api* api, std::string origin);

  const std::string& name() const { return name_; }              // "shm"
  const std::string& tag() const { return tag_; }                // "SHM"
  const std::string& version() const { return version_; }        // of the plugin; may be ""
  const std::string& vendor_lib() const { return vendor_lib_; }  // may be ""
  const std::string& path() const { return origin_; }
  int abi_minor() const { return api_->hdr.minor; }

  bool has_device() const { return api_->device != nullptr; }
  bool has_comm() const { return api_->comm != nullptr; }
  uint64_t comm_caps() const { return has_comm() ? api_->comm->caps : 0; }
  // Whether a collective on host memory goes on after the call, so that another communicator can be called meanwhile.
  bool returns_at_once() const { return (comm_caps() & (HVD_CAP_REQUEST | HVD_CAP_STREAM)) == HVD_CAP_REQUEST; }
  // Whether its communicators read and write this memory directly; "cpu" is host memory.
  bool serves_device_type(const std::string& type) const;
  // The type that the device table serves, "" without one.
  std::string device_type() const;
  const std::vector<Option>& options() const { return options_; }
  const hvd_backend_api* api() const { return api_; }
  const hvd_device_api* device_api() const { return api_->device; }
  const hvd_comm_api* comm_api() const { return api_->comm; }

  // A fact about the running library, by key; nullopt if the backend does not know it, or not yet. Throws BackendError
  // for an answer that the ABI does not allow. Any thread at any time.
  std::optional<std::string> fact(const std::string& key) const;

  // All `ranks` (world ranks in order; hosts[i] is the host index of ranks[i]) call this with the same key, which is
  // unique in the job. Waits for the members until deadline_ns (absolute CLOCK_MONOTONIC). `device`: the device whose
  // memory the communicator uses; it may be a foreign device. Throws BackendError: TIMEOUT, REMOTE, or the backend's
  // own error. `driver`: of the engine that uses the communicator; null: its operations are not recorded.
  std::unique_ptr<Communicator> create_comm(const std::string& key, Store& store, const std::vector<int32_t>& ranks,
                                            const std::vector<int32_t>& hosts, int32_t my_rank_in_comm,
                                            int64_t deadline_ns, void* notify_token = nullptr,
                                            const OpenDevice& device = {},
                                            std::shared_ptr<DriverRecord> driver = nullptr);

  // The same by the backend's split. All ranks of `parent` call this, one that is in no part with empty lists (the
  // result is null then). `parent` has no operation in flight. Only if splits().
  std::unique_ptr<Communicator> split_comm(Communicator& parent, const std::string& key, Store& store,
                                           const std::vector<int32_t>& ranks, const std::vector<int32_t>& hosts,
                                           int32_t my_rank_in_comm, int64_t deadline_ns, const OpenDevice& device = {},
                                           std::shared_ptr<DriverRecord> driver = nullptr);
  bool splits() const { return HVD_HAS(api_->comm, hvd_comm_api, split); }

  // How a collective would be served, without a communicator. support is HVD_UNSERVED if the backend answers
  // UNSUPPORTED (*why, unless null, then has its text); other failures throw BackendError. Reads no addresses.
  hvd_coll_caps query(const hvd_coll_args& args) const { return query(nullptr, args); }
  hvd_coll_caps query(hvd_comm comm, const hvd_coll_args& args, std::string* why = nullptr) const;

 private:
  std::string exchange_id(const std::string& prefix, Store& store, int32_t rank, size_t size,
                          int64_t deadline_ns) const;
  void await_creation(hvd_comm comm, int64_t deadline_ns) const;
  std::unique_ptr<Communicator> ready(const char* what, hvd_rc rc, const hvd_error& error, hvd_comm handle,
                                      const hvd_comm_args& args, std::shared_ptr<DriverRecord> driver);

  const hvd_backend_api* api_;
  std::string origin_, name_, tag_, version_, vendor_lib_;
  std::vector<Option> options_;
};

}  // namespace hvd::plugins
