// A Lowering over one communicator that composes the collectives, element types and reductions that the communicator
// lacks.
//
// An allgather of one type is enough for all compositions; with allreduce and broadcast, fewer bytes are moved. Values
// are never narrowed, and the results have the same bits on all ranks. Each composition is logged once. Host memory
// only. Used by the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/dataplane/composition.h"
#include "engine/dataplane/host_math.h"
#include "engine/dataplane/lowering.h"
#include "engine/dataplane/packing.h"
#include "engine/dataplane/service.h"

namespace hvd::dataplane {

struct EmulationPolicy {
  bool allowed = true;              // HOROVOD_EMULATION
  std::string device_type = "cpu";  // of the memory; for messages
  // Whether all members of the process set come to the same refusals. Between hosts they do not: members without a lane
  // would wait for ever, so a refusal there must end the job.
  bool alike = true;
  bool completes = false;             // the lowering below waits for a STREAM communicator
  uint64_t scratch_bytes = 64 << 20;  // about how many bytes one round of a composition gathers
  // The log lines so far; the lowerings of one engine share them, so that each line is written once.
  std::shared_ptr<std::set<std::string>> said = std::make_shared<std::set<std::string>>();
};

class EmulatedLowering final : public Lowering {
 public:
  // `inner` carries out the collectives that `comm` serves itself (a DirectLowering over it, or a BounceLowering).
  // All three must outlive this object.
  EmulatedLowering(Lowering& inner, plugins::Communicator& comm, const HostMath& math, EmulationPolicy policy = {});

  void write_steps(Schedule& schedule, const plugins::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

  bool serves_message(int32_t coll, int32_t dtype) override { return compositions_.abilities().serves(coll, dtype); }

  // Throws and logs as write_steps() would, for a caller that writes other steps first.
  void check(const plugins::Collective& c) { choose(c); }
  // How a collective of a few elements is served; for reports. `varying`: with explicit sizes per rank.
  Served served(int32_t coll, int32_t dtype, int32_t op, bool varying = false);

 private:
  using Sizes = std::vector<uint64_t>;
  // Scratch memory that the rounds of one collective share. It grows on demand.
  struct Scratch {
    char* p = nullptr;
    uint64_t bytes = 0;
    char* at_least(Schedule& schedule, uint64_t n);
  };
  using Blocks = std::vector<char*>;  // one address per rank

  Composition choose(const plugins::Collective& c);
  uint64_t scratch_limit(const plugins::Collective& c) const { return policy_.scratch_bytes / c.siblings; }
  void refuse(const plugins::Collective& c, Composition composition) const;
  void log_once(const plugins::Collective& c, Composition composition);
  plugins::Collective settings(const plugins::Collective& c, int32_t coll, int32_t dtype) const;

  // Writes an allgather. Returns, for each rank r, the address where its bytes[r] bytes will be. The
  // bytes travel as the carrier of `dtype`.
  Blocks gather(Schedule& schedule, const plugins::Collective& c, int32_t dtype, const ByteList& mine,
                const Sizes& bytes, Scratch& in, Scratch& out);
  // Writes an alltoall; returns the addresses in the same way.
  Blocks exchange(Schedule& schedule, const plugins::Collective& c, int32_t dtype, const std::vector<ByteList>& to,
                  const Sizes& from, Scratch& in, Scratch& out);
  static void write_blocks(Schedule& schedule, const Blocks& blocks, std::vector<ByteList> places);
  void write_reduction(Schedule& schedule, const plugins::Collective& c, const Blocks& blocks, ByteList out);
  void write_inner(Schedule& schedule, const plugins::Collective& c, uint64_t alignment);
  void broadcast_bytes(Schedule& schedule, const plugins::Collective& c);
  void broadcast_gathered(Schedule& schedule, const plugins::Collective& c);
  void allgather(Schedule& schedule, const plugins::Collective& c);
  void alltoall(Schedule& schedule, const plugins::Collective& c, bool gathered);
  void alltoall_rounds(Schedule& schedule, const plugins::Collective& c, const std::vector<ByteList>& to,
                       const std::vector<ByteList>& from, uint64_t unit, uint64_t max_count);
  void alltoall_gathered(Schedule& schedule, const plugins::Collective& c, const std::vector<ByteList>& to,
                         const std::vector<ByteList>& from);

  uint64_t exchange_limit(int32_t dtype);
  void native(Schedule& schedule, const plugins::Collective& c);
  void sum_and_divide(Schedule& schedule, const plugins::Collective& c);
  void widened(Schedule& schedule, const plugins::Collective& c);
  void gather_reduce(Schedule& schedule, const plugins::Collective& c);
  void exchange_reduce(Schedule& schedule, const plugins::Collective& c);
  void exchange_reduce_scatter(Schedule& schedule, const plugins::Collective& c);
  void reduce_through_allreduce(Schedule& schedule, const plugins::Collective& c);
  void scatter_through_allreduce(Schedule& schedule, const plugins::Collective& c);
  void barrier(Schedule& schedule, const plugins::Collective& c);

  Lowering& inner_;
  plugins::Communicator& comm_;
  const HostMath& math_;
  const Packer packer_;
  EmulationPolicy policy_;
  Compositions compositions_;
};

}  // namespace hvd::dataplane
