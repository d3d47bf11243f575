// See c_table.h.
#include "engine/frontend/c_table.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/calls/checks.h"
#include "engine/frontend/submit.h"

namespace hvd::frontend {

using base::Failure;
using base::OpKind;

namespace {

constexpr int64_t kSliceNs = 100'000'000;

hvd_fe_status status_of(Failure failure) {
  switch (failure) {
    case Failure::Mistake:
      return HVD_FE_INVALID_ARGUMENT;
    case Failure::Disagreement:
      return HVD_FE_FAILED_PRECONDITION;
    case Failure::SetRemoved:
      return HVD_FE_ABORTED;
    case Failure::JobEnded:
      break;
  }
  return HVD_FE_UNKNOWN;
}

// The status for an exception that the engine threw, so that there is no request.
hvd_fe_status status_of(const Engine& engine, const std::exception& e) {
  if (dynamic_cast<const RequestFailed*>(&e))
    return engine.belongs_to_parent() ? HVD_FE_FAILED_PRECONDITION : HVD_FE_UNKNOWN;
  return HVD_FE_INVALID_ARGUMENT;
}

// ------------------------------------------------------------------------------------------------------- arguments

calls::Tensor tensor_of(const hvd_fe_tensor& t) {
  calls::require(t.dtype >= 0 && t.dtype < HVD_DTYPE_COUNT, "unknown tensor type ", t.dtype);
  calls::require(t.ndim >= 0 && (t.ndim == 0 || t.shape), "a tensor needs its shape");
  calls::Tensor to;
  to.data = t.data;
  to.dtype = t.dtype;
  to.shape.assign(t.shape, t.shape + t.ndim);
  for (int64_t d : to.shape) calls::require(d >= 0, "a dimension of a tensor is negative: ", d);
  if (t.device_type) to.device_type = t.device_type;
  to.device_id = t.device_id;
  to.has_stream = t.has_stream != 0;
  to.stream = t.stream;
  calls::require(to.data || to.bytes() == 0, "a tensor has no memory");
  return to;
}

std::vector<calls::Tensor> tensors_of(const hvd_fe_tensor* list, int32_t n) {
  std::vector<calls::Tensor> tensors;
  if (!list) return tensors;
  tensors.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) tensors.push_back(tensor_of(list[i]));
  return tensors;
}

// The type of the device that the call's tensors were copied from; nullptr if they were in host memory.
const char* staged_from(const hvd_fe_call& c) {
  constexpr size_t kEnd = offsetof(hvd_fe_call, staged_from) + sizeof c.staged_from;
  return c.struct_size >= kEnd && c.staged_from && *c.staged_from ? c.staged_from : nullptr;
}

// Runs `step`, which comes before the submission. An exception is reported to the other ranks.
template <typename F>
void poisoning(Engine& engine, const Call& call, F&& step) {
  try {
    step();
  } catch (const std::exception& e) {
    engine.poison(call.process_set, call.kind, call.name, e.what());
    throw;
  }
}

Call call_of(Engine& engine, const hvd_fe_call& c) {
  Call call;
  call.kind = kind_of(c.op);
  call.name = name_of(call.kind, c.name);
  call.process_set = c.process_set;
  call.reduce_op = c.reduce_op;
  call.root = c.root_rank;
  call.prescale = c.prescale;
  call.postscale = c.postscale;
  call.soon = c.urgent != 0;
  if (call.kind == OpKind::Barrier) return call;
  poisoning(engine, call, [&] {
    calls::require(c.n > 0 && c.in, base::op_name(call.kind), " needs at least one tensor");
    call.in = tensors_of(c.in, c.n);
    if (!base::sizes_vary(call.kind)) call.out = tensors_of(c.out, c.n);
    if (const char* type = staged_from(c))
      for (calls::Tensor& t : call.in) {
        calls::require(t.on_host(), "a tensor that was copied from a device must be in host memory, and is on ",
                       t.device_type);
        t.staged_from = type;
      }
    if (call.kind != OpKind::Alltoall) return;
    calls::require(c.n == 1, "alltoall of several tensors at once is not supported, but there are ", c.n);
    calls::require(c.n_splits >= 0, "a negative number of splits: ", c.n_splits);
    if (c.splits) call.splits.emplace_back(c.splits, c.splits + c.n_splits);
  });
  return call;
}

// --------------------------------------------------------------------------------------------------------- results

bool can_order(const calls::Request& request) {
  if (request.call.in.empty() || !request.call.in[0].has_stream || !request.finished) return false;
  const plugins::Device& device = request.finished->device();
  return device.orders_streams() && device.wraps_streams();
}

struct Copying {
  Engine& engine;
  calls::Request& request;
};

// hvd_fe_result::copy. Waits for the end of the copy if the target's stream cannot be ordered after it.
int32_t copy_out(const hvd_fe_result* self, int32_t index, const hvd_fe_tensor* target) {
  auto& [engine, request] = *static_cast<const Copying*>(self->context);
  try {
    calls::require(target != nullptr && index >= 0, "copy() needs an output's number and a tensor");
    const auto end = copy_output(engine, request, static_cast<size_t>(index), tensor_of(*target));
    while (end && !end->wait(base::now_ns() + kSliceNs))
      if (engine.stopped()) return HVD_FE_UNKNOWN;
    return HVD_FE_OK;
  } catch (const InvalidRequest& e) {
    base::log(base::Level::Error, std::string("copy of a result: ") + e.what());
    return HVD_FE_INVALID_ARGUMENT;
  } catch (const std::exception& e) {
    base::log(base::Level::Error, std::string("copy of a result: ") + e.what());
    return HVD_FE_UNKNOWN;
  }
}

hvd_fe_result result_of(hvd_fe_status status, const char* text) {
  hvd_fe_result r{};
  r.struct_size = sizeof r;
  r.status = status;
  r.message = text;
  r.last_joined = -1;
  r.copy = [](const hvd_fe_result*, int32_t, const hvd_fe_tensor*) -> int32_t { return HVD_FE_INVALID_ARGUMENT; };
  return r;
}

using Done = void (*)(void*, const hvd_fe_result*);

// Calls done() for a request that is settled.
void call_done(Engine& engine, calls::Request& request, Done done, void* arg) {
  if (request.failed()) {
    auto r = result_of(status_of(request.failure()), request.error().c_str());
    r.lingers = request.lingers ? 1 : 0;
    return done(arg, &r);
  }
  const Copying copying{engine, request};
  std::vector<hvd_fe_tensor> outputs;
  for (const calls::Output& o : request.outputs) {
    hvd_fe_tensor t{};
    t.data = o.device_memory ? o.device_memory->buf.base : o.data.get();
    t.shape = o.shape.data();
    t.ndim = static_cast<int32_t>(o.shape.size());
    t.dtype = o.dtype;
    if (o.device_memory) t.device_type = o.device_type.c_str();
    t.device_id = request.call.in[0].device_id;
    outputs.push_back(t);
  }
  auto r = result_of(HVD_FE_OK, "");
  r.n_outputs = static_cast<int32_t>(outputs.size());
  r.outputs = outputs.data();
  if (!request.received_splits.empty()) {
    r.n_received = static_cast<int32_t>(request.received_splits[0].size());
    r.received_splits = request.received_splits[0].data();
  }
  r.last_joined = request.last_joined;
  r.copy = copy_out;
  r.context = &copying;
  done(arg, &r);
}

// A call that was submitted, until its done() has returned.
class Pending final : public calls::Listener, public Completions::Task {
 public:
  Pending(std::shared_ptr<Frontend> frontend, const hvd_fe_call& call, bool attended)
      : frontend_(std::move(frontend)), done_(call.done), arg_(call.arg), state_(attended ? kAttended : kAlone) {}

  // If the caller's stream cannot be ordered after the work, done() comes at the end of the work.
  bool settled(const calls::Request& request) noexcept override {
    if (request.enqueued() && !can_order(request)) return false;
    if (state_.exchange(kSettled) == kAlone) frontend_->completions().push(this);
    return true;
  }

  // The submitting thread, which has stayed, leaves. Returns true if it has to call run(). Otherwise the object may be
  // gone when this returns.
  bool leave(bool is_settled) noexcept {
    // Another driver has settled the request a moment ago, and is about to call settled().
    for (int looks = 0; is_settled && looks < kLooks && state_.load() != kSettled; ++looks) {
    }
    return state_.exchange(kAlone) == kSettled;
  }

  void run() noexcept override {
    Engine& engine = frontend_->engine();
    try {
      if (!request->failed() && can_order(*request)) engine.order_after(*request, request->call.in[0].stream);
      call_done(engine, *request, done_, arg_);
    } catch (const std::exception& e) {  // none comes from done_()
      const auto r = result_of(HVD_FE_UNKNOWN, e.what());
      done_(arg_, &r);
    }
    delete this;
  }

 private:
  // Attended: the submitting thread stays for the result. Alone: the thread that settles the request passes it on.
  enum State { kAlone, kAttended, kSettled };
  static constexpr int kLooks = 1000;

  const std::shared_ptr<Frontend> frontend_;
  const Done done_;
  void* const arg_;
  std::atomic<State> state_;
};

std::unique_ptr<Pending> pending_for(const std::shared_ptr<Frontend>& frontend, const hvd_fe_call& call,
                                     bool attended) {
  frontend->completions().start();
  return std::make_unique<Pending>(frontend, call, attended);
}

// How long submit() stays with the call: 0 also where this thread must not.
int64_t stay_ns(const hvd_fe_call& c) {
  constexpr size_t kEnd = offsetof(hvd_fe_call, stay_ns) + sizeof c.stay_ns;
  if (c.struct_size < kEnd || c.stay_ns <= 0 || c.op == HVD_FE_JOIN || !Completions::Keeper::can_keep()) return 0;
  for (int32_t i = 0; c.in && i < c.n; ++i)
    if (c.in[i].device_type && std::strcmp(c.in[i].device_type, "cpu") != 0) return 0;
  return c.stay_ns;
}

// Drives until the call is done or has timed out, and calls done() of the calls that this settles.
void stay(Engine& engine, Completions::Keeper& keeper, Pending& pending, calls::Request& request, int64_t ns) noexcept {
  const int64_t until = base::now_ns() + ns;
  bool settled = false;
  while (!(settled = engine.stay(request, ns, keeper.any())) && keeper.any()) {
    keeper.run();
    ns = std::max<int64_t>(0, until - base::now_ns());
  }
  const bool mine = pending.leave(settled);
  keeper.run(mine ? &pending : nullptr);
}

}  // namespace

OpKind kind_of(int32_t op) {
  calls::require(op >= HVD_FE_ALLREDUCE && op <= HVD_FE_REDUCESCATTER, "unknown operation ", op);
  return static_cast<OpKind>(op);
}

std::optional<std::string> name_of(OpKind kind, const char* name) {
  if (!name || !*name) return std::nullopt;
  return std::string(base::op_name(kind)) + "." + name;
}

void refuse_native(const hvd_fe_call& call, hvd_fe_status status, const char* text) {
  const auto r = result_of(status, text);
  call.done(call.arg, &r);
}

void submit_native(std::shared_ptr<Frontend> frontend, const hvd_fe_call& call) {
  Engine& engine = frontend->engine();
  const int64_t stays = stay_ns(call);
  std::optional<Completions::Keeper> keeper;  // made first: Completions::finish() waits for it
  if (stays > 0) keeper.emplace(frontend->completions());
  std::unique_ptr<Pending> pending;
  calls::RequestRef request;
  try {
    if (call.op == HVD_FE_JOIN) {
      pending = pending_for(frontend, call, false);
      request = engine.join(pending.get());
    } else {
      Call c = call_of(engine, call);
      c.stays = stays > 0;
      poisoning(engine, c, [&] { pending = pending_for(frontend, call, stays > 0); });
      c.listener = pending.get();
      request = frontend::submit(*frontend, std::move(c));
    }
  } catch (const std::exception& e) {
    return refuse_native(call, status_of(engine, e), e.what());
  }
  Pending& submitted = *pending.release();  // deletes itself after done(), perhaps by now
  if (keeper) stay(engine, *keeper, submitted, *request, stays);
}

void run_native(Frontend& frontend, const hvd_fe_call& call) {
  Engine& engine = frontend.engine();
  calls::RequestRef request;
  try {
    if (call.op == HVD_FE_JOIN) {
      request = engine.join();
    } else {
      Call c = call_of(engine, call);
      c.waits = true;
      request = frontend::submit(frontend, std::move(c));
    }
    while (!engine.wait(*request, kSliceNs)) {
    }
    const bool on_device = !request->call.in.empty() && !request->call.in[0].on_host();
    if (on_device && !(can_order(*request) && engine.order_after(*request, request->call.in[0].stream)))
      while (!engine.finish(*request, kSliceNs)) {
      }
  } catch (const std::exception& e) {
    return refuse_native(call, status_of(engine, e), e.what());
  }
  try {
    call_done(engine, *request, call.done, call.arg);
  } catch (const std::exception& e) {  // none comes from done()
    refuse_native(call, HVD_FE_UNKNOWN, e.what());
  }
}

}  // namespace hvd::frontend
