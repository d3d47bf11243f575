// The communicators of one process set, and which way each of its collectives goes over them.
//
// A set on one host has one communicator of the local backend. A set on several hosts has one over all its ranks
// ("flat"), or one within each host and one per lane between the hosts, or both: HOROVOD_HIERARCHICAL_* and the choice
// of backends say which operation takes which way (docs/architecture.md). Created once, collectively, by a thread that
// may wait; then used by the thread that drives the engine. abort() from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/data/device_plan.h"
#include "engine/data/emulated.h"
#include "engine/data/host_math.h"
#include "engine/data/layout.h"
#include "engine/data/service_notes.h"
#include "engine/data/transport.h"
#include "engine/plugin/backend.h"

namespace hvd::data {

// What an engine has to build process sets from. The same on all ranks.
struct Backends {
  std::shared_ptr<plugin::Backend> local;   // within a host; may be null
  std::shared_ptr<plugin::Backend> global;  // between any ranks; null when all are on one host and `local` serves them
  bool local_alone = true;                  // whether a set on one host uses `local`; else only hierarchies do
  std::array<bool, HVD_COLL_COUNT> hierarchical{};  // by HVD_* collective, for sets on several hosts
  EmulationPolicy emulation;                        // of what a backend lacks
  std::shared_ptr<const HostMath> math;
  // Collectives that go over another backend than the rest, flat over all members of a set; null: like the rest.
  std::array<std::shared_ptr<plugin::Backend>, HVD_COLL_COUNT> host_routes{};
  std::map<std::string, std::shared_ptr<DevicePlan>> devices;  // by type
  std::shared_ptr<ServiceNotes> notes = std::make_shared<ServiceNotes>();
};

class SetDevice;

// A communicator over some members of a set, for host memory unless a device is given. Collective over them.
std::unique_ptr<plugin::Communicator> create_comm(const Layout& layout, const std::shared_ptr<plugin::Backend>& backend,
                                                  const std::vector<int32_t>& set_ranks, const std::string& key,
                                                  plugin::Store& store, int64_t deadline_ns,
                                                  const plugin::OpenDevice& device = {});

class SetComms final : public Transport {
 public:
  // Collective over the members: all call it with the same key, and it waits for them until deadline_ns. Throws
  // plugin::BackendError.
  SetComms(const Backends& backends, Layout layout, const std::string& key, plugin::Store& store, int64_t deadline_ns);
  ~SetComms() override;

  void plan(Program& program, const plugin::Collective& c) override {
    ways_[static_cast<size_t>(c.coll)]->plan(program, c);
  }
  int32_t rank() const override { return layout_.me; }
  int32_t size() const override { return layout_.size(); }
  const Layout& layout() const { return layout_; }

  // The ways of a type of device; null before they are made, which its owner does.
  SetDevice* device(const std::string& type) const;
  void add_device(const std::string& type, std::shared_ptr<SetDevice> made);

  void abort() noexcept;

 private:
  plugin::Communicator* create(const std::shared_ptr<plugin::Backend>& backend, const std::vector<int32_t>& set_ranks,
                               const std::string& key, plugin::Store& store, int64_t deadline_ns);
  Transport* single(plugin::Communicator* comm, const Backends& backends, bool alike);
  Transport* hierarchy(const Backends& backends, const std::string& key, plugin::Store& store, int64_t deadline_ns);

  Layout layout_;
  std::mutex mutex_;  // comms_ and devices_ grow while abort() may look at them
  bool aborted_ = false;
  // Transports go before the communicators they use.
  std::vector<std::unique_ptr<plugin::Communicator>> comms_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::array<Transport*, HVD_COLL_COUNT> ways_{};
  std::map<std::string, std::shared_ptr<SetDevice>> devices_;
};

}  // namespace hvd::data
