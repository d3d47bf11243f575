// Chooses the composition of a collective, logs it, and words the refusals. See emulated.h.
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
    : inner_(inner), comm_(comm), math_(math), policy_(std::move(policy)), compositions_(comm, policy_.completes) {}

namespace {
std::string describe(int32_t coll, int32_t dtype, int32_t op, const std::string& device) {
  std::string text = types::collective_name(coll);
  if (coll == HVD_BARRIER) return text + " on " + device;
  if (types::has_reduction(coll) && op != HVD_SUM) text += std::string(" (") + types::reduce_op_name(op) + ")";
  return text + " of " + types::dtype_name(dtype) + " on " + device;
}
}  // namespace

void EmulatedTransport::refuse(const plugin::Collective& c, Composition composition) const {
  std::string text = "horovod: " + describe(c.coll, c.dtype, c.op, policy_.device_type) +
                     " is not supported by backend '" + comm_.backend().name() + "' and ";
  if (composition != Composition::None) {
    const std::string here = policy_.device_type + "." + types::collective_name(c.coll);
    text += "emulation is off (HOROVOD_EMULATION=0).\n  fix: ";
    text += policy_.device_type == "cpu"
                ? "HOROVOD_EMULATION=1, HOROVOD_BACKEND=" + here + "=<another backend>, or cast."
                : "HOROVOD_BACKEND=" + here + "=tcp, or cast.";  // tcp serves host memory: staged
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

void EmulatedTransport::log_once(const plugin::Collective& c, Composition composition) {
  if (comm_.rank() != 0) return;
  const std::string key = comm_.backend().name() + "/" + std::to_string(c.coll) + "/" + std::to_string(c.dtype);
  if (!policy_.said->insert(key).second) return;
  // A warning for compositions that cost time. Moving bytes as another type or dividing at the end costs little.
  const bool cheap =
      composition == Composition::Bytes || composition == Composition::SumAndDivide || c.coll == HVD_BARRIER;
  observe::log(cheap ? observe::Level::Info : observe::Level::Warning,
               describe(c.coll, c.dtype, c.op, policy_.device_type) + ": backend '" + comm_.backend().name() + "' " +
                   compositions_.shortage(c.coll, c.dtype, c.op) + "; EMULATED by " +
                   compositions_.describe(composition, c.coll, c.dtype, c.op) + " (said once).");
}

Served EmulatedTransport::served(int32_t coll, int32_t dtype, int32_t op, bool varying) {
  const Composition composition = compositions_.choose(coll, dtype, op, varying, 0);
  if (composition == Composition::Native) return {Service::Native, ""};
  if (composition == Composition::None || !policy_.allowed) return {Service::Unsupported, ""};
  return {Service::Emulated, compositions_.describe(composition, coll, dtype, op)};
}

plugin::Collective EmulatedTransport::settings(const plugin::Collective& c, int32_t coll, int32_t dtype) const {
  plugin::Collective s;
  copy_settings(s, c);
  s.coll = coll;
  s.dtype = dtype;
  return s;
}

Composition EmulatedTransport::choose(const plugin::Collective& c) {
  uint64_t bytes = 0;
  if (types::has_reduction(c.coll))
    for (uint64_t n : c.counts) bytes += n * types::dtype_bytes(c.dtype);
  const bool varying = !c.out_counts.empty() || !c.in_counts.empty();
  const Composition composition = compositions_.choose(c.coll, c.dtype, c.op, varying, bytes);
  if (composition == Composition::Native) return composition;
  if (composition == Composition::None || !policy_.allowed) refuse(c, composition);
  log_once(c, composition);
  return composition;
}

void EmulatedTransport::write_steps(Schedule& schedule, const plugin::Collective& c) {
  const Composition composition = choose(c);
  if (composition == Composition::Native) return native(schedule, c);
  switch (composition) {
    case Composition::Bytes:
      if (c.coll == HVD_BROADCAST) return broadcast_bytes(schedule, c);
      if (c.coll == HVD_ALLGATHER) return allgather(schedule, c);
      return alltoall(schedule, c, false);
    case Composition::GatheredMove:
      if (c.coll == HVD_BROADCAST) return broadcast_gathered(schedule, c);
      if (c.coll == HVD_BARRIER) return barrier(schedule, c);
      return alltoall(schedule, c, true);
    case Composition::SumAndDivide:
      return sum_and_divide(schedule, c);
    case Composition::Widened:
      return widened(schedule, c);
    case Composition::ExchangeReduce:
      if (c.coll == HVD_REDUCESCATTER) return exchange_reduce_scatter(schedule, c);
      return exchange_reduce(schedule, c);
    case Composition::GatherReduce:
      return gather_reduce(schedule, c);
    default:
      if (c.coll == HVD_BARRIER) return barrier(schedule, c);
      if (c.coll == HVD_REDUCE) return reduce_through_allreduce(schedule, c);
      return scatter_through_allreduce(schedule, c);
  }
}

}  // namespace hvd::data
