// How one process set moves the memory of one type of device: a communicator of each backend that reads it, and for
// each collective the way it goes.
//
//   direct    the communicator does it, buffers stay on the device
//   emulated  staged: the host composes it from what the communicator has, each part of it over the device again
//   beside    staged: a backend that opened no device of this type may serve little or nothing of its memory, which its
//             communicator alone tells; the rest goes over a second one of the same backend, for host memory
//   staged    no communicator reads the memory for this collective: over the set's host communicators
//
// Made once, collectively, at the set's first operation on such a device, by a thread that may wait; then used by the
// thread that drives the engine. abort() from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/data/device_direct.h"
#include "engine/data/device_plan.h"
#include "engine/data/emulated.h"
#include "engine/data/set_comms.h"
#include "engine/data/staged.h"

namespace hvd::data {

class SetDevice final : public Transport {
 public:
  // `host`: the set's transport for host memory; it outlives this object. Opens the device if nobody has. Throws
  // plugin::BackendError.
  SetDevice(const Backends& backends, std::shared_ptr<DevicePlan> plan, SetComms& host, const std::string& key,
            plugin::Store& store, int64_t deadline_ns);
  // A collective goodbye first, unless aborted.
  ~SetDevice();

  void plan(Program& program, const plugin::Collective& c) override;
  // An allreduce by Adasum: on the host.
  void plan_adasum(Program& program, const plugin::Collective& c);
  int32_t rank() const override { return host_.rank(); }
  int32_t size() const override { return host_.size(); }

  const std::shared_ptr<plugin::Device>& device() const { return device_; }
  // Throws plugin::BackendError when a communicator has learnt of a failure since.
  void check();
  void abort() noexcept;

 private:
  struct Way;
  struct Beside;
  struct AdasumTransport;
  void open_way(Way& way, const Backends& backends, const std::shared_ptr<plugin::Backend>& backend,
                const std::string& key, plugin::Store& store, int64_t deadline_ns);
  template <class F>
  void each_comm(F&& f) const;
  void note(const plugin::Collective& c, const plugin::Backend* backend, const char* served, const std::string& how);
  std::string why_beside(Way& way, const plugin::Collective& c) const;

  const std::shared_ptr<DevicePlan> plan_;
  SetComms& host_;
  const std::string host_name_;
  const std::shared_ptr<ServiceNotes> notes_;
  const std::shared_ptr<std::set<std::string>> said_;
  std::shared_ptr<plugin::Device> device_;
  std::vector<std::unique_ptr<Way>> all_ways_;
  std::array<Way*, HVD_COLL_COUNT> ways_{};
  std::unique_ptr<StagedTransport> staged_;
  std::unique_ptr<AdasumTransport> adasum_;
  std::unique_ptr<StagedTransport> staged_adasum_;
};

}  // namespace hvd::data
