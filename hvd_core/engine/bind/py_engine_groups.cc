// Operations of front ends whose groups of ranks have calls in one order, each under its number, and process sets that
// their members alone ask for. See py_engine.h.
#include <pybind11/stl.h>

#include <algorithm>

#include "engine/bind/py_engine.h"
#include "engine/bind/python_program.h"
#include "engine/bind/signal_slices.h"
#include "engine/bind/tensor_view.h"
#include "engine/calls/checks.h"
#include "engine/observe/log.h"
#include "engine/types/operations.h"

namespace py = pybind11;

namespace hvd::bind {

using calls::require;
using types::OpKind;

namespace {

OpKind kind_of(const std::string& operation) {
  for (const auto& o : types::kOperations)
    if (operation == o.name && (o.kind <= OpKind::Reducescatter || o.kind == OpKind::Send)) return o.kind;
  throw InvalidRequest("unknown operation '" + operation + "'");
}

int64_t deadline_in(double seconds) { return observe::now_ns() + static_cast<int64_t>(std::min(seconds, 1e9) * 1e9); }

}  // namespace

uint64_t PyEngine::ordered(const std::string& operation, const std::string& name, int process_set, py::handle inputs,
                           py::handle outputs, int number, double prescale, const std::vector<int64_t>& row_splits,
                           std::vector<int64_t> received, int64_t unit, double wait_s, int root) {
  const bool receives = operation == "recv", reduces = operation == "reduce";
  const OpKind kind = receives ? OpKind::Send : reduces ? OpKind::Allreduce : kind_of(operation);
  calls::Call c{.kind = kind, .name = name, .process_set = process_set};
  c.once = true;
  if (c.kind == OpKind::Send) between(c, number, !receives);
  std::shared_ptr<Notifier> notifier;
  try {
    if (!inputs.is_none()) c.in = tensors_of(inputs, inputs.is(outputs));
    if (!outputs.is_none()) c.out = inputs.is(outputs) ? c.in : tensors_of(outputs, true);
    if (c.kind != OpKind::Send) (types::has_reduce_op(c.kind) ? c.reduce_op : c.root) = number;
    if (reduces) c.to = root;
    c.prescale = prescale;
    if (!row_splits.empty()) {
      require(!c.in.empty() && row_splits.size() % c.in.size() == 0, "splits are needed for each tensor");
      const auto each = static_cast<ptrdiff_t>(row_splits.size() / c.in.size());
      for (auto at = row_splits.begin(); at != row_splits.end(); at += each) c.splits.emplace_back(at, at + each);
    }
    c.received = std::move(received);
    c.unit = unit;
    c.waits = wait_s >= 0;
    if (!c.waits) notifier = Notifier::make(frontend_);
  } catch (const std::exception& e) {
    calls::refuse(*engine_, c, e.what());
    throw;
  }
  if (c.waits) return wait_at_once(std::move(c), {inputs, outputs}, deadline_in(wait_s));
  c.listener = notifier.get();
  try {
    return submit(std::move(c), {inputs, outputs}, notifier);
  } catch (...) {
    notifier->forget();
    throw;
  }
}

void PyEngine::between(calls::Call& call, int32_t other, bool sends) const {
  call.root = sends ? engine_->config().rank : other;
  call.to = sends ? other : engine_->config().rank;
}

uint64_t PyEngine::message(py::handle tensor, bool sends, py::handle other, py::handle name, py::handle process_set) {
  calls::Call c{.kind = OpKind::Send};
  // First, because a refusal goes to the other rank.
  between(c, argument<int>(other, sends ? "dst" : "src", "a rank"), sends);
  checked(c, name, process_set, [&] {
    c.in = tensors_of(tensor, !sends);
    c.out = c.in;
  });
  return submit(std::move(c), {tensor, tensor});
}

void PyEngine::refuse_message(const std::string& text, bool sends, int other, const std::optional<std::string>& name,
                              int process_set) {
  calls::Call c{.kind = OpKind::Send, .name = name, .process_set = process_set};
  between(c, other, sends);
  calls::refuse(*engine_, c, text);
}

// As submit() for a caller that waits, but until a deadline only. Tensors in host memory.
uint64_t PyEngine::wait_at_once(calls::Call&& call, Owners owners, int64_t deadline_ns) {
  require(call.in.empty() || (call.in[0].on_host() && call.in[0].staged_from.empty()),
          "only an operation on host memory can be waited for at once");
  call.site = call_site();
  if (!abandoned_.empty()) sweep_abandoned();
  auto request = calls::submit(*frontend_, std::move(call));
  try {
    if (await_until(*request, deadline_ns)) return 0;
  } catch (...) {
    abandon({std::move(request), std::move(owners)});
    throw;
  }
  owners.hold_memory();
  return keep(std::move(request), std::move(owners));
}

uint64_t PyEngine::add_members_set(std::vector<int32_t> ranks, const std::string& label) {
  return keep(engine_->add_members_set(std::move(ranks), label, call_site()));
}

uint64_t PyEngine::remove_members_set(int process_set) {
  return keep(engine_->remove_members_set(process_set, call_site()));
}

// Throws the operation's failure.
bool PyEngine::await_until(queue::Request& request, int64_t deadline_ns) {
  if (!wait_in_slices([&] { return request.settled(); }, [&](int64_t ns) { return engine_->wait(request, ns); },
                      deadline_ns))
    return false;
  request.throw_if_failed();
  return true;
}

bool PyEngine::wait_for(uint64_t handle, double seconds) { return await_until(*find(handle), deadline_in(seconds)); }

bool PyEngine::notify(uint64_t handle, py::object callback) {
  std::shared_ptr<Notifier> notifier;
  {
    std::lock_guard lock(handles_mutex_);
    const auto it = handles_.find(handle);
    if (it != handles_.end()) notifier = it->second.notifier;
  }
  require(notifier != nullptr, "no operation of ordered() has this handle");
  return notifier->call_at_the_end(std::move(callback));
}

void bind_groups(py::class_<PyEngine>& engine) {
  engine
      .def("ordered", &PyEngine::ordered, py::arg("operation"), py::arg("name"), py::arg("process_set"),
           py::arg("inputs"), py::arg("outputs"), py::arg("number") = 0, py::arg("prescale") = 1.0,
           py::arg("splits") = std::vector<int64_t>(), py::arg("received") = std::vector<int64_t>(),
           py::arg("unit") = -1, py::arg("wait_s") = -1.0, py::arg("root") = -1)
      .def("message", &PyEngine::message, py::arg("tensor"), py::arg("sends"), py::arg("other"), py::arg("name"),
           py::arg("process_set") = 0)
      .def("refuse_message", &PyEngine::refuse_message, py::arg("text"), py::arg("sends"), py::arg("other"),
           py::arg("name"), py::arg("process_set") = 0)
      .def("add_members_set", &PyEngine::add_members_set, py::arg("ranks"), py::arg("label"))
      .def("remove_members_set", &PyEngine::remove_members_set, py::arg("process_set"))
      .def("wait_for", &PyEngine::wait_for, py::arg("handle"), py::arg("seconds"))
      .def("notify", &PyEngine::notify, py::arg("handle"), py::arg("callback"));
}

}  // namespace hvd::bind
