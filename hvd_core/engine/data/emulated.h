// A Transport over one communicator that composes what the communicator lacks: collectives, element types, reductions.
//
// A backend needs only an allgather of one type for that; with allreduce and broadcast less is moved. Values are never
// narrowed, results are the same bits on all ranks, and what is composed is said once. Host memory only. Used by the
// thread that drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/data/byte_list.h"
#include "engine/data/emulated_routes.h"
#include "engine/data/host_math.h"
#include "engine/data/transport.h"

namespace hvd::data {

enum class Served { Native, Emulated, Unsupported };

struct Service {
  Served served = Served::Unsupported;
  std::string how;  // "allgather + local reduction"
};

struct EmulationPolicy {
  bool allowed = true;              // HOROVOD_EMULATION
  std::string device_type = "cpu";  // whose memory it is; for messages
  // Whether all members of the process set come to the same refusals. Between hosts, members without a lane do not:
  // there a refusal must end the job, or they would wait for ever.
  bool alike = true;
  bool completes = false;             // whether the transport below waits for a STREAM communicator
  uint64_t scratch_bytes = 64 << 20;  // about so much is gathered at a time
  // What has been said; shared by the transports of one engine, so that nothing is said twice.
  std::shared_ptr<std::set<std::string>> said = std::make_shared<std::set<std::string>>();
};

class EmulatedTransport final : public Transport {
 public:
  // `inner` moves what `comm` can do itself (a DirectTransport over it, or a BounceTransport). All three must outlive
  // this object.
  EmulatedTransport(Transport& inner, plugin::Communicator& comm, const HostMath& math, EmulationPolicy policy = {});

  void plan(Program& program, const plugin::Collective& c) override;
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }

  // What plan() throws and says before it writes anything, for callers who write steps of their own before it.
  void admit(const plugin::Collective& c) { choose(c); }
  // How a collective of a few elements is served; for reports. `varying`: with explicit sizes per rank.
  Service service(int32_t coll, int32_t dtype, int32_t op, bool varying = false);

 private:
  using Sizes = std::vector<uint64_t>;
  // Scratch memory that the rounds of one collective share; grows when asked for more.
  struct Room {
    char* p = nullptr;
    uint64_t bytes = 0;
    char* at_least(Program& program, uint64_t n);
  };
  // A stretch of a list: what one rank is sent.
  struct Slice {
    std::shared_ptr<const ByteList> list;
    uint64_t at = 0, bytes = 0;
  };
  using Blocks = std::vector<char*>;  // one address per rank

  Route choose(const plugin::Collective& c);
  void refuse(const plugin::Collective& c, Route route) const;
  void say(const plugin::Collective& c, Route route);
  plugin::Collective settings(const plugin::Collective& c, int32_t coll, int32_t dtype) const;

  // emulated_move.cc: steps that leave what every rank r put in, bytes[r] bytes, at the addresses returned. `dtype` is
  // whose carrier is taken.
  Blocks gather(Program& program, const plugin::Collective& c, int32_t dtype, const Slice& mine, const Sizes& bytes,
                Room& in, Room& out);
  // The same for slices that differ by receiver.
  Blocks exchange(Program& program, const plugin::Collective& c, int32_t dtype, const std::vector<Slice>& to,
                  const Sizes& from, Room& in, Room& out);
  void broadcast_bytes(Program& program, const plugin::Collective& c);
  void broadcast_gathered(Program& program, const plugin::Collective& c);
  void allgather(Program& program, const plugin::Collective& c);
  void alltoall(Program& program, const plugin::Collective& c, bool gathered);
  void alltoall_rounds(Program& program, const plugin::Collective& c, const std::vector<Slice>& to,
                       std::vector<std::shared_ptr<const ByteList>> from, uint64_t unit, uint64_t max_count);
  void alltoall_gathered(Program& program, const plugin::Collective& c, const std::vector<Slice>& to,
                         std::vector<std::shared_ptr<const ByteList>> from);

  // emulated_reduce.cc
  void native(Program& program, const plugin::Collective& c);
  void sum_and_divide(Program& program, const plugin::Collective& c);
  void widened(Program& program, const plugin::Collective& c);
  void gather_reduce(Program& program, const plugin::Collective& c);
  void exchange_reduce(Program& program, const plugin::Collective& c);
  void exchange_reduce_scatter(Program& program, const plugin::Collective& c);
  void reduce_through_allreduce(Program& program, const plugin::Collective& c);
  void scatter_through_allreduce(Program& program, const plugin::Collective& c);
  void barrier(Program& program, const plugin::Collective& c);

  Transport& inner_;
  plugin::Communicator& comm_;
  const HostMath& math_;
  EmulationPolicy policy_;
  Routes routes_;
};

}  // namespace hvd::data
