// See device_levels.h.
#include "engine/dataplane/device_levels.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/dtypes.h"
#include "engine/dataplane/hierarchical.h"

namespace hvd::dataplane {

namespace {

// Slices are a multiple of this many elements, so that each of them is aligned if the whole is.
constexpr uint64_t kUnit = 64;

plugins::Collective step_of(const plugins::Collective& c, int32_t coll) {
  plugins::Collective step(c.settings());
  step.coll = coll;
  step.prescale = step.postscale = 1.0;
  return step;
}

}  // namespace

bool DeviceLevels::fits(const Layout& layout) {
  return layout.host_count() > 1 && layout.lanes > 1 &&
         std::ranges::all_of(layout.hosts, [&](const auto& host) { return std::ssize(host) == layout.lanes; });
}

bool DeviceLevels::divides(const plugins::Collective& c) {
  return c.coll == HVD_ALLREDUCE && (c.op != HVD_AVG || base::is_floating(c.dtype)) &&
         total_bytes(c) > HierarchicalLowering::kSingleLaneBytes;
}

plugins::Collective DeviceLevels::scatter_of(const plugins::Collective& c) {
  plugins::Collective step = step_of(c, HVD_REDUCESCATTER);
  step.prescale = c.prescale;
  return step;
}

plugins::Collective DeviceLevels::gather_of(const plugins::Collective& c) { return step_of(c, HVD_ALLGATHER); }

void DeviceLevels::write_steps(Schedule& schedule, const plugins::Collective& c) {
  const uint64_t width = base::dtype_bytes(c.dtype), n = total_elements(c);
  const auto lanes = static_cast<uint64_t>(within_.size());
  const uint64_t slice = (n + lanes * kUnit - 1) / (lanes * kUnit) * kUnit;
  const bool packs = c.counts.size() > 1 || n != slice * lanes;
  const hvd_buf own = scratch_on(schedule, *device_, slice * width);
  const hvd_buf packed = packs ? scratch_on(schedule, *device_, slice * lanes * width) : hvd_buf{};
  ByteList in, out;
  for (size_t i = 0; packs && i < c.counts.size(); ++i) {
    in.add(part_of(c.in[i], 0, c.counts[i] * width));
    out.add(part_of(c.out[i], 0, c.counts[i] * width));
  }
  packer_.copy(schedule, in.pack(packed), c.dtype);

  plugins::Collective step = scatter_of(c);
  step.in = {packs ? packed : c.in[0]};
  step.out = {own};
  step.counts = {slice * lanes};
  within_.write_steps(schedule, step);

  step = step_of(c, HVD_ALLREDUCE);
  step.postscale = c.postscale;
  step.in = step.out = {own};
  step.counts = {slice};
  between_.write_steps(schedule, step);

  step = gather_of(c);
  step.in = {own};
  step.out = {packs ? packed : c.out[0]};
  step.counts = {slice};
  within_.write_steps(schedule, step);
  packer_.copy(schedule, out.unpack(packed), c.dtype);
}

}  // namespace hvd::dataplane
