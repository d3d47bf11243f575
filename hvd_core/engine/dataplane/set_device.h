// How one process set moves the memory of one device type. For each collective, the route names a backend, or none:
//
//   on the device  a communicator of that backend reads the memory: NATIVE, or EMULATED on the device
//   composed       the host composes the collective, and each part of it runs over that communicator: EMULATED
//   host staging   the device is foreign to the backend (another backend's table opened it). The backend's communicator
//                  tells what it serves of that memory; the rest is copied through host memory and runs over a second
//                  communicator of the same backend, for host memory: STAGED
//   no route       copied through host memory, over the set's host communicators: STAGED
//
// The members create it together, at the set's first operation on the device type, on a thread that may wait. Then the
// driver uses it. Any thread may call abort().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/dataplane/adasum.h"
#include "engine/dataplane/device_direct.h"
#include "engine/dataplane/device_types.h"
#include "engine/dataplane/emulated.h"
#include "engine/dataplane/service.h"
#include "engine/dataplane/set_comms.h"
#include "engine/dataplane/staged.h"

namespace hvd::dataplane {

class SetDevice final : public Lowering {
 public:
  // `host`: the set's lowering for host memory; it outlives this object. Opens the device if it is not open yet.
  // Throws plugins::BackendError. `parent`: as in SetComms, the device type's communicators of that set.
  SetDevice(const Backends& backends, std::shared_ptr<DeviceRoutes> device, SetComms& host, const std::string& key,
            plugins::Store& store, int64_t deadline_ns, const SetDevice* parent = nullptr);
  // Finalizes the communicators first (all members do this together), unless they were aborted.
  ~SetDevice();

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  // As SetComms::sends(), on the device's memory.
  bool sends(int32_t dtype) const;
  // Writes the steps of an allreduce by Adasum, which runs on the host.
  void write_adasum(Schedule& schedule, const plugins::Collective& c);
  int32_t rank() const override { return host_.rank(); }
  int32_t size() const override { return host_.size(); }

  const std::shared_ptr<plugins::Device>& device() const { return device_; }
  // Throws plugins::BackendError if a communicator was aborted or reports a failure.
  void check();
  void abort() noexcept;

  // The communicators on the device that a part of this set splits off: those whose backends can do that.
  Whole whole() const;
  // On the parent, for a rank that is not in the part; see SetComms.
  void take_part(const Layout& part, const std::string& key, plugins::Store& store, int64_t deadline_ns,
                 const std::shared_ptr<plugins::DriverRecord>& driver) const;

 private:
  struct Route;
  struct Levels;
  struct HostStaging;
  // How a route carries out a collective.
  struct Method {
    Lowering* lowering;
    Served served;
  };
  // Over the `ranks` of the set, which call it with the same key.
  void open_route(Route& route, const Backends& backends, const std::shared_ptr<plugins::Backend>& backend,
                  const std::vector<int32_t>& ranks, const std::string& key, plugins::Store& store, int64_t deadline_ns,
                  const Whole& parent = {});
  // Throws plugins::Refused if the collective would be composed, and may not be.
  Method method(Route& route, const plugins::Collective& c) const;
  template <class F>
  void for_each_comm(F&& f) const;
  // `over`: the backends that serve it; `named`: whether a route of this device names them.
  void note(const plugins::Collective& c, const std::string& over, bool named, Served served);
  static std::string reason_for_staging(Route& route, const plugins::Collective& c);

  const std::string type_;
  const std::string table_name_;  // the backend whose table opened the device
  SetComms& host_;
  const std::shared_ptr<ServiceNotes> notes_;
  const std::shared_ptr<std::set<std::string>> said_;
  const std::shared_ptr<plugins::Device> device_;
  std::vector<std::unique_ptr<Route>> routes_;     // one per backend
  std::array<Route*, HVD_COLL_COUNT> route_of_{};  // by HVD_* collective; null: no route
  std::unique_ptr<Levels> levels_;                 // of a large allreduce over several hosts; may be null
  std::unique_ptr<StagedLowering> staged_;
  std::unique_ptr<AdasumLowering> adasum_;
  std::unique_ptr<StagedLowering> staged_adasum_;
};

}  // namespace hvd::dataplane
