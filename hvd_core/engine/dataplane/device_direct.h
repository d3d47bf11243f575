// A Lowering for a device's memory over one communicator that reads and writes it: buffers stay on the device. Beside
// it BounceLowering, for host memory over such a communicator.
//
// Copies within the device adapt the buffers to the communicator: they pack lists, move misaligned buffers, multiply by
// factors, and turn sums into averages. Types that the communicator only lacks for movement travel as another type of
// the same bytes. With a STREAM communicator, all work is enqueued on the device's stream and the schedule goes on at
// once. With a REQUEST communicator, the schedule waits for the stream first and then for the collective. Used by the
// driver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/dataplane/abilities.h"
#include "engine/dataplane/lowering.h"
#include "engine/dataplane/packing.h"
#include "engine/plugins/device.h"

namespace hvd::dataplane {

class DeviceLowering final : public Lowering {
 public:
  // The communicator must outlive this object.
  DeviceLowering(plugins::Communicator& comm, std::shared_ptr<plugins::Device> device)
      : comm_(comm), device_(std::move(device)), abilities_(comm), packer_(comm.rank(), comm.size(), device_) {}

  // Deregisters the memory for packing. Called before finalize, because a finalized communicator may not accept that
  // call. Later collectives are packed into memory that is not registered.
  void release() noexcept;

  // How write_steps() would carry the collective out; equal on all ranks.
  enum class Method {
    None,         // it cannot
    Native,       // the backend serves it
    AsBytes,      // a movement, as elements of another type
    SumAndDivide  // an average, as a sum and a division
  };
  Method method(const plugins::Collective& c);
  // The backend's reason for not serving the collective; "" if it gives no reason.
  const std::string& why(const plugins::Collective& c) { return abilities_.ask(c).why; }

  // Only for collectives whose method() is not None. Buffers of 0 bytes may be null.
  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }

 private:
  bool scalable(const plugins::Collective& c, uint32_t* left);
  int32_t carrier(const plugins::Collective& c);
  void emit(Schedule& schedule, const plugins::Collective& c, const Ability& ability);
  void enqueue(Schedule& schedule, std::vector<plugins::Collective> members);
  hvd_buf packing_memory(Schedule& schedule, uint64_t bytes, uint64_t alignment);

  // Memory for packing that is registered with the backend.
  struct PackingMemory {
    plugins::MemoryRef memory;
    void* registered;
  };
  std::vector<PackingMemory> packing_;
  bool registers_ = true;  // false once the backend has not registered a buffer

  plugins::Communicator& comm_;
  const std::shared_ptr<plugins::Device> device_;
  Abilities abilities_;
  const Packer packer_;
};

// A Lowering for host memory over a communicator that reads only device memory. EmulatedLowering composes collectives
// on the host over it. It applies the factors that neither the communicator nor the device's copies apply. Each
// collective is complete when the schedule goes on. `inner` and `math` outlive it.
class BounceLowering final : public Lowering {
 public:
  BounceLowering(DeviceLowering& inner, std::shared_ptr<plugins::Device> device, const HostMath& math)
      : inner_(inner), device_(std::move(device)), packer_(inner.rank(), inner.size(), nullptr, &math) {}

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

 private:
  void bounce(Schedule& schedule, const plugins::Collective& c);

  DeviceLowering& inner_;
  const std::shared_ptr<plugins::Device> device_;
  const Packer packer_;
};

}  // namespace hvd::dataplane
