// A Transport for a device's memory over one communicator that reads and writes it: buffers stay on the device.
//
// What the communicator does not take as it is, copies within the device put right: lists are packed, misaligned
// buffers moved, factors multiplied in, averages made of sums, movements of one type done as another of the same bytes.
// With a STREAM communicator everything is enqueued on the device's stream, and the program goes on at once; with a
// REQUEST one it waits for the stream first and for the collective then. Used by the thread that drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/abilities.h"
#include "engine/data/host_math.h"
#include "engine/data/transport.h"
#include "engine/plugin/device.h"

namespace hvd::data {

class DeviceTransport final : public Transport {
 public:
  // The communicator must outlive this object.
  DeviceTransport(plugin::Communicator& comm, std::shared_ptr<plugin::Device> device)
      : comm_(comm), device_(std::move(device)), abilities_(comm) {}

  // Tells the backend that the memory for packing will not be used again: before a goodbye, after which it might not
  // take that any more. Only collectives that need none may come after it.
  void release() noexcept;

  // How plan() would do it; the same on all ranks.
  enum class Way {
    None,    // not at all
    Native,  // the backend does it
    Bytes,   // movement as elements of another type
    Average  // a sum, and a division
  };
  Way way(const plugin::Collective& c);
  // Why the backend does not do it, in its words; "" if it says nothing.
  const std::string& why(const plugin::Collective& c) { return ask(c, Abilities::kNone).why; }

  // Buffers may be of 0 bytes and null. Only what way() does not call None.
  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }

 private:
  const Ability& ask(const plugin::Collective& c, uint32_t factors);
  bool scalable(const plugin::Collective& c, uint32_t* left);
  int32_t carrier(const plugin::Collective& c);
  void emit(Program& program, const plugin::Collective& c, const Ability& ability);
  void run(Program& program, std::vector<plugin::Collective> members, bool grouped);
  void packed(Program& program, const plugin::Collective& c, const Ability& ability, uint64_t below, double pre,
              double post);
  void moved(Program& program, const plugin::Collective& c, const Ability& ability, double pre, double post);
  void split(Program& program, const plugin::Collective& c, const Ability& ability);
  void slices(Program& program, const plugin::Collective& c, const Ability& ability);
  void copy(Program& program, std::vector<plugin::Device::Copy> list, int32_t dtype, double scale);
  hvd_buf scratch(Program& program, uint64_t bytes, uint64_t alignment);
  hvd_buf fusion(Program& program, uint64_t bytes, uint64_t alignment);

  // Memory for packing that the backend has been told of.
  struct Fusion {
    plugin::MemoryRef memory;
    void* registered;
  };
  std::vector<Fusion> fusion_;
  bool registers_ = true;  // until the backend makes nothing of it

  plugin::Communicator& comm_;
  const std::shared_ptr<plugin::Device> device_;
  Abilities abilities_;
};

// A Transport for host memory through a device's: for what a communicator on device memory has, as parts of something
// that the host composes. Factors that neither the communicator nor the device's copies apply are applied here. Every
// collective is over when the program goes on. `inner` and `math` outlive it.
class BounceTransport final : public Transport {
 public:
  BounceTransport(DeviceTransport& inner, std::shared_ptr<plugin::Device> device, const HostMath& math)
      : inner_(inner), device_(std::move(device)), math_(math) {}

  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

 private:
  void bounce(Program& program, const plugin::Collective& c);

  DeviceTransport& inner_;
  const std::shared_ptr<plugin::Device> device_;
  const HostMath& math_;
};

}  // namespace hvd::data
