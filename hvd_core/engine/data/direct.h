// A Transport over one communicator that can do what it is asked for. Lists of buffers go down as they are where the
// communicator takes lists; otherwise as one packed buffer, or one by one where packing would need the data rearranged.
#pragma once

#include "engine/data/transport.h"

namespace hvd::data {

class DirectTransport final : public Transport {
 public:
  // The communicator must outlive this object.
  explicit DirectTransport(plugin::Communicator& comm) : comm_(comm) {}

  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return comm_.rank(); }
  int32_t size() const override { return comm_.size(); }

 private:
  void plan_packed(Program& program, const plugin::Collective& c);
  void plan_each(Program& program, const plugin::Collective& c);

  plugin::Communicator& comm_;
};

}  // namespace hvd::data
