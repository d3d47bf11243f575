// A Lowering for device memory that the lowering below cannot read: the device copies the data through pinned host
// memory. ALLREDUCE, REDUCE and BROADCAST run in chunks, so that the copies of one chunk and the collective of another
// overlap. The other collectives run as a whole.
//
// Inputs are read in the order of the collective's stream; null: the engine's own stream. Results are in device memory
// when the schedule is complete, without a wait for a stream. Used by the driver.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/dataplane/lowering.h"
#include "engine/plugins/device.h"

namespace hvd::dataplane {

class StagedLowering final : public Lowering {
 public:
  static constexpr uint64_t kChunkBytes = 4 << 20;

  // `inner` works on host memory and outlives this object. `chunk_bytes` is equal on all ranks; 0: never in chunks.
  StagedLowering(Lowering& inner, std::shared_ptr<plugins::Device> device, uint64_t chunk_bytes = kChunkBytes)
      : inner_(inner), device_(std::move(device)), chunk_bytes_(chunk_bytes) {}

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

 private:
  static constexpr size_t kSlots = 2;
  struct Pipeline;
  void write_in_chunks(Schedule& schedule, const plugins::Collective& c);
  void write_whole(Schedule& schedule, const plugins::Collective& c);

  Lowering& inner_;
  const std::shared_ptr<plugins::Device> device_;
  const uint64_t chunk_bytes_;
};

// Adds a wait until the stream has reached the point where it ends when this step starts.
void write_stream_wait(Schedule& schedule, std::shared_ptr<plugins::Device> device, hvd_stream stream);

}  // namespace hvd::dataplane
