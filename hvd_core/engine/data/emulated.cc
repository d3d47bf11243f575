// Which way a collective goes, and what is said about it. See emulated.h.
#include "engine/data/emulated.h"

#include <utility>

#include "engine/data/parts.h"
#include "engine/observe/log.h"
#include "engine/types/collectives.h"
#include "engine/types/dtypes.h"
#include "engine/types/reductions.h"

namespace hvd::data {

EmulatedTransport::EmulatedTransport(Transport& inner, plugin::Communicator& comm, const HostMath& math,
                                     EmulationPolicy policy)
    : inner_(inner), comm_(comm), math_(math), policy_(std::move(policy)), routes_(comm, policy_.completes) {}

namespace {
std::string what_of(int32_t coll, int32_t dtype, int32_t op, const std::string& device) {
  std::string text = types::collective_name(coll);
  if (coll == HVD_BARRIER) return text + " on " + device;
  if (types::has_reduction(coll) && op != HVD_SUM) text += std::string(" (") + types::reduce_op_name(op) + ")";
  return text + " of " + types::dtype_name(dtype) + " on " + device;
}
}  // namespace

void EmulatedTransport::refuse(const plugin::Collective& c, Route route) const {
  std::string text = "horovod: " + what_of(c.coll, c.dtype, c.op, policy_.device_type) +
                     " is not supported by backend '" + comm_.backend().name() + "' and ";
  if (route != Route::None) {
    const std::string here = policy_.device_type + "." + types::collective_name(c.coll);
    text += "emulation is off (HOROVOD_EMULATION=0).\n  fix: ";
    text += policy_.device_type == "cpu"
                ? "HOROVOD_EMULATION=1, HOROVOD_BACKEND=" + here + "=<another backend>, or cast."
                : "HOROVOD_BACKEND=" + here + "=tcp, or cast.";  // one that serves host memory: staged
  } else if (types::has_reduction(c.coll) && !types::is_reducible(c.dtype, c.op)) {
    text += "cannot be emulated: this reduction of " + std::string(types::dtype_name(c.dtype)) +
            " does not exist on host memory either.\n  fix: cast.";
  } else if (!policy_.completes && !(comm_.caps() & HVD_CAP_REQUEST)) {
    text += "cannot be emulated: the backend works on streams, which host memory does not have.\n  fix: " +
            std::string("HOROVOD_BACKEND=<another backend>, or cast.");
  } else {
    text += "cannot be emulated: the backend has no allgather to compose it from.\n  fix: " +
            std::string("HOROVOD_BACKEND=<another backend>.");
  }
  text += "  No automatic narrowing is done.";
  if (policy_.alike) throw plugin::Refused(text);
  throw plugin::BackendError(HVD_E_UNSUPPORTED, 0, 0, text);
}

void EmulatedTransport::say(const plugin::Collective& c, Route route) {
  if (comm_.rank() != 0) return;
  const std::string key = comm_.backend().name() + "/" + std::to_string(c.coll) + "/" + std::to_string(c.dtype);
  if (!policy_.said->insert(key).second) return;
  // Moving bytes under another name and dividing at the end cost next to nothing; a composed reduction does not.
  const bool cheap = route == Route::Bytes || route == Route::SumAndDivide || c.coll == HVD_BARRIER;
  observe::log(cheap ? observe::Level::Info : observe::Level::Warning,
               what_of(c.coll, c.dtype, c.op, policy_.device_type) + ": backend '" + comm_.backend().name() + "' " +
                   routes_.shortage(c.coll, c.dtype, c.op) + "; EMULATED by " +
                   routes_.describe(route, c.coll, c.dtype, c.op) + " (said once).");
}

Service EmulatedTransport::service(int32_t coll, int32_t dtype, int32_t op, bool varying) {
  const Route route = routes_.choose(coll, dtype, op, varying, 0);
  if (route == Route::Native) return {Served::Native, ""};
  if (route == Route::None || !policy_.allowed) return {Served::Unsupported, ""};
  return {Served::Emulated, routes_.describe(route, coll, dtype, op)};
}

plugin::Collective EmulatedTransport::settings(const plugin::Collective& c, int32_t coll, int32_t dtype) const {
  plugin::Collective s;
  copy_settings(s, c);
  s.coll = coll;
  s.dtype = dtype;
  return s;
}

Route EmulatedTransport::choose(const plugin::Collective& c) {
  uint64_t bytes = 0;
  if (types::has_reduction(c.coll))
    for (uint64_t n : c.counts) bytes += n * types::dtype_bytes(c.dtype);
  const bool varying = !c.out_counts.empty() || !c.in_counts.empty();
  const Route route = routes_.choose(c.coll, c.dtype, c.op, varying, bytes);
  if (route == Route::Native) return route;
  if (route == Route::None || !policy_.allowed) refuse(c, route);
  say(c, route);
  return route;
}

void EmulatedTransport::plan(Program& program, const plugin::Collective& c) {
  const Route route = choose(c);
  if (route == Route::Native) return native(program, c);
  switch (route) {
    case Route::Bytes:
      if (c.coll == HVD_BROADCAST) return broadcast_bytes(program, c);
      if (c.coll == HVD_ALLGATHER) return allgather(program, c);
      return alltoall(program, c, false);
    case Route::GatheredMove:
      if (c.coll == HVD_BROADCAST) return broadcast_gathered(program, c);
      if (c.coll == HVD_BARRIER) return barrier(program, c);
      return alltoall(program, c, true);
    case Route::SumAndDivide:
      return sum_and_divide(program, c);
    case Route::Widened:
      return widened(program, c);
    case Route::ExchangeReduce:
      if (c.coll == HVD_REDUCESCATTER) return exchange_reduce_scatter(program, c);
      return exchange_reduce(program, c);
    case Route::GatherReduce:
      return gather_reduce(program, c);
    default:
      if (c.coll == HVD_BARRIER) return barrier(program, c);
      if (c.coll == HVD_REDUCE) return reduce_through_allreduce(program, c);
      return scatter_through_allreduce(program, c);
  }
}

}  // namespace hvd::data
