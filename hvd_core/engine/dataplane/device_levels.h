// A Lowering for an allreduce of device memory over several hosts with equally many ranks: one lowering within each
// host, and one between hosts.
//
// Each rank reduces its slice with the ranks of its host, then with the ranks that have the same slice on other hosts
// (its lane), and the ranks of a host gather the slices. Between hosts the data may go through host memory: each rank
// copies its slice only, and each byte leaves a host as often as with HierarchicalLowering. Used by the driver.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/dataplane/layout.h"
#include "engine/dataplane/lowering.h"
#include "engine/dataplane/packing.h"
#include "engine/plugins/device.h"

namespace hvd::dataplane {

class DeviceLevels final : public Lowering {
 public:
  // Whether a set has two levels of this kind.
  static bool fits(const Layout& layout);

  // Both lowerings take buffers of the device, and outlive this object. `within` has the ranks of this host in the
  // layout's order, `between` those of this rank's lane in the order of hosts.
  DeviceLevels(Layout layout, Lowering& within, Lowering& between, std::shared_ptr<plugins::Device> device)
      : layout_(std::move(layout)),
        within_(within),
        between_(between),
        device_(std::move(device)),
        packer_(layout_.me, layout_.size(), device_) {}

  // Whether a collective should go over two levels: a large allreduce whose averages can be taken once per level. Equal
  // on all ranks.
  static bool divides(const plugins::Collective& c);
  // The collectives of `c` within a host, without buffers.
  static plugins::Collective scatter_of(const plugins::Collective& c);
  static plugins::Collective gather_of(const plugins::Collective& c);

  // Only for collectives of which divides() is true.
  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return layout_.me; }
  int32_t size() const override { return layout_.size(); }

 private:
  const Layout layout_;
  Lowering& within_;
  Lowering& between_;
  const std::shared_ptr<plugins::Device> device_;
  const Packer packer_;
};

}  // namespace hvd::dataplane
