// A Transport for a device's memory that the transport below cannot use: through pinned host memory, with the device's
// own copies. ALLREDUCE, REDUCE and BROADCAST go in chunks, so that copies and the collectives of other chunks
// overlap; the others as a whole.
//
// Results are in device memory when the program is through: no stream need be waited for. Data are read in the order
// of the collective's stream; without one (null) in that of the engine's own. Used by the thread that drives the
// engine.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/data/transport.h"
#include "engine/plugin/device.h"

namespace hvd::data {

class StagedTransport final : public Transport {
 public:
  static constexpr uint64_t kChunkBytes = 4 << 20;

  // `inner` works on host memory and outlives this object. chunk_bytes is the same on all ranks; 0: never in chunks.
  StagedTransport(Transport& inner, std::shared_ptr<plugin::Device> device, uint64_t chunk_bytes = kChunkBytes)
      : inner_(inner), device_(std::move(device)), chunk_bytes_(chunk_bytes) {}

  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

 private:
  static constexpr size_t kSlots = 2;
  struct Pipeline;
  void plan_chunks(Program& program, const plugin::Collective& c);
  void plan_whole(Program& program, const plugin::Collective& c);

  Transport& inner_;
  const std::shared_ptr<plugin::Device> device_;
  const uint64_t chunk_bytes_;
};

// The program goes on when the stream has come to where it ends when this step begins.
void plan_await(Program& program, std::shared_ptr<plugin::Device> device, hvd_stream stream);

}  // namespace hvd::data
