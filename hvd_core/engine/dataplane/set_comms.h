// The communicators of one process set on host memory, and the lowering of each collective over them.
//
// A set on one host has one communicator of the local backend. A set on several hosts has one over all its ranks
// ("flat"), or one within each host and one per lane between the hosts, or both: HOROVOD_HIERARCHICAL_* and the choice
// of backends say which collective uses which (docs/architecture.md). The members create it together, on a thread that
// may wait. Then the driver uses it. Any thread may call abort().
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/dataplane/device_types.h"
#include "engine/dataplane/emulated.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/layout.h"
#include "engine/dataplane/lowering.h"
#include "engine/dataplane/service.h"
#include "engine/plugins/backend.h"

namespace hvd::dataplane {

// The backends and settings from which an engine builds process sets. Equal on all ranks.
struct Backends {
  std::shared_ptr<plugins::Backend> local;   // within a host; may be null
  std::shared_ptr<plugins::Backend> global;  // between any ranks; null when all are on one host and `local` serves them
  bool local_alone = true;                   // a set on one host uses `local`; false: only hierarchies use it
  std::array<bool, HVD_COLL_COUNT> hierarchical{};  // by HVD_* collective, for sets on several hosts
  bool overlap_levels = true;                       // of such a set, where the backends can do that
  EmulationPolicy emulation;                        // for the EmulatedLowerings
  std::shared_ptr<const HostMath> math;
  // By HVD_* collective: a backend that serves this collective alone, flat over all members; null: the usual one.
  std::array<std::shared_ptr<plugins::Backend>, HVD_COLL_COUNT> host_routes{};
  std::shared_ptr<DeviceTypes> devices = std::make_shared<DeviceTypes>();
  std::shared_ptr<plugins::DriverRecord> driver;  // of their operations; null: not recorded
  std::shared_ptr<ServiceNotes> notes = std::make_shared<ServiceNotes>();
};

class SetDevice;

// Communicators over all members of a set, by their purpose: "local", "flat", "only/<backend>" in host memory. A
// set that all ranks of another one make together can split such a communicator off the other set's one of the same
// kind.
using Whole = std::map<std::string, plugins::Communicator*>;

// A communicator over some members of a set, for host memory unless a device is given. Collective over them.
std::unique_ptr<plugins::Communicator> create_comm(const Layout& layout,
                                                   const std::shared_ptr<plugins::Backend>& backend,
                                                   const std::vector<int32_t>& set_ranks, const std::string& key,
                                                   plugins::Store& store, int64_t deadline_ns,
                                                   const plugins::OpenDevice& device = {},
                                                   std::shared_ptr<plugins::DriverRecord> driver = nullptr);

// The same over all ranks of `layout`, as a part of `parent`. A rank that is not in it (`member` is false) takes part
// and gets null. Members get null where the backend answers UNSUPPORTED, on all ranks alike.
std::unique_ptr<plugins::Communicator> split_comm(const Layout& layout, bool member, plugins::Communicator& parent,
                                                  const std::string& key, plugins::Store& store, int64_t deadline_ns,
                                                  const plugins::OpenDevice& device,
                                                  std::shared_ptr<plugins::DriverRecord> driver);

class SetComms final : public Lowering {
 public:
  // All members call this with the same key; it waits for them until deadline_ns. Throws plugins::BackendError.
  // `parent`: a set that contains all of them, and whose ranks all take part: the members by this constructor, the
  // others by take_part(). Neither has an operation in flight. Communicators are split off the parent's where the
  // backend can do that, also those for device types that the parent has used.
  SetComms(const Backends& backends, Layout layout, const std::string& key, plugins::Store& store, int64_t deadline_ns,
           std::shared_ptr<SetComms> parent = nullptr);
  // On the parent, for a rank that is not in the part. `part`: the layout of the new set.
  void take_part(const Backends& backends, const Layout& part, const std::string& key, plugins::Store& store,
                 int64_t deadline_ns);
  // Whether a part of this set splits any communicator off.
  bool splits(const Backends& backends, const Layout& part) const;
  ~SetComms() override;

  void write_steps(Schedule& schedule, const plugins::Collective& c) override {
    lowering_of_[static_cast<size_t>(c.coll)]->write_steps(schedule, c);
  }
  // The backends that carry a collective of the set, as reports name them: "shm", "shm x tcp" for a hierarchy.
  const std::string& carriers(int32_t coll) const { return carriers_[static_cast<size_t>(coll)]; }
  // Whether the set's backend carries out both halves of a message of this type.
  bool sends(int32_t dtype) const;
  int32_t rank() const override { return layout_.me; }
  int32_t size() const override { return layout_.size(); }
  const Layout& layout() const { return layout_; }

  // The communicator that carries out the set's allreduces, if its collectives use windows. Null: *why says what lacks.
  plugins::Communicator* window_comm(std::string* why) const;
  // The windows of that communicator in the order of creation, the same on all members. The driver's, or of the thread
  // that creates the next window while the driver waits for it.
  std::vector<plugins::WindowRef> windows;
  // Windows of this rank that are not in the list and that the backend has not ended: they live until the communicator
  // is destroyed (window_free comes after that).
  std::vector<plugins::WindowRef> unended_windows;
  uint64_t windows_asked_for = 0;  // the number of the next one; equal on all members

  // The communicators for a device type; null before the first operation on it. The executor adds them.
  SetDevice* device(const std::string& type) const;
  void add_device(const std::string& type, std::shared_ptr<SetDevice> made);

  // An abort of a backend that does not come back keeps no lock of this object.
  void abort() noexcept;

 private:
  plugins::Communicator* create(const std::shared_ptr<plugins::Backend>& backend, const std::vector<int32_t>& set_ranks,
                                const std::string& key, plugins::Store& store, int64_t deadline_ns);
  // Over all members; split off the parent if that has such a communicator, whose backend can do that.
  plugins::Communicator* create_whole(const std::shared_ptr<plugins::Backend>& backend, const std::string& kind,
                                      const std::string& key, plugins::Store& store, int64_t deadline_ns);
  plugins::Communicator* keep(std::unique_ptr<plugins::Communicator> made);
  std::vector<std::pair<std::string, plugins::Communicator*>> split_off(const Backends& backends,
                                                                        const Layout& part) const;
  Lowering* single(plugins::Communicator* comm, const Backends& backends, bool alike);
  Lowering* hierarchy(const Backends& backends, const std::string& key, plugins::Store& store, int64_t deadline_ns);

  Layout layout_;
  const std::shared_ptr<SetComms> parent_;  // outlives the communicators that were split off; null: there is no parent
  const std::shared_ptr<plugins::DriverRecord> driver_;
  std::mutex mutex_;  // comms_ and devices_ grow while another thread may call abort()
  bool aborted_ = false;
  // Declared before the lowerings, so destroyed after them: lowerings use communicators.
  std::vector<std::unique_ptr<plugins::Communicator>> comms_;
  Whole whole_;
  std::vector<std::unique_ptr<Lowering>> lowerings_;
  std::array<Lowering*, HVD_COLL_COUNT> lowering_of_{};      // by HVD_* collective
  std::array<std::string, HVD_COLL_COUNT> carriers_;         // likewise
  std::map<const Lowering*, plugins::Communicator*> alone_;  // the communicator of a lowering that has one
  std::map<std::string, std::shared_ptr<SetDevice>> devices_;
};

}  // namespace hvd::dataplane
