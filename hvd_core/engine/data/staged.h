// A Transport for a device's memory that the communicator below cannot read: through pinned host memory, with the
// device's own copies. ALLREDUCE, REDUCE and BROADCAST go in chunks, so that copies and the collectives of other chunks
// overlap; the others as a whole.
//
// Results are in device memory when the program is through: no stream need be waited for. Data are read in the order
// of the collective's stream; without one (null) they must be ready before the program runs. Used by the thread that
// drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/device_queue.h"
#include "engine/data/transport.h"

namespace hvd::data {

class StagedTransport final : public Transport {
 public:
  // `inner` works on host memory. `device` is open, of the backend's device table. Both outlive this object.
  // chunk_bytes is the same on all ranks.
  StagedTransport(Transport& inner, std::shared_ptr<plugin::Backend> backend, hvd_device device,
                  uint64_t chunk_bytes = 4 << 20);

  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

 private:
  struct Pipeline;
  void plan_chunks(Program& program, const plugin::Collective& c);
  void plan_whole(Program& program, const plugin::Collective& c);
  void await(Program& program, size_t mark);

  Transport& inner_;
  DeviceQueue queue_;
  const uint64_t chunk_bytes_;
};

}  // namespace hvd::data
