// See py_engine.h.
#include "engine/bind/py_engine.h"

#include <pthread.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "engine/bind/arguments.h"
#include "engine/bind/engine_config.h"
#include "engine/bind/plugin_phases.h"
#include "engine/bind/python_lock.h"
#include "engine/bind/python_program.h"
#include "engine/bind/signal_slices.h"
#include "engine/bind/tensor_view.h"
#include "engine/calls/checks.h"
#include "engine/observe/log.h"
#include "engine/observe/observer.h"
#include "engine/plugin/host_api.h"
#include "engine/types/dtypes.h"
#include "engine/types/operations.h"

namespace py = pybind11;

namespace hvd::bind {

using calls::require;
using types::OpKind;

namespace {

// Engines of this process, for the fork hook: they do not belong to a forked child. Part of the binding, not of the
// engine, because pthread_atfork has no context argument.
struct Engines {
  std::mutex mutex;  // held during a fork, so that the child finds the list whole
  std::vector<Engine*> all;
};

Engines& engines() {
  static auto* const kept = new Engines;
  return *kept;
}

void before_fork() {
  engines().mutex.lock();
  for (Engine* e : engines().all) e->before_fork();
}

void in_parent() {
  for (Engine* e : engines().all) e->after_fork();
  engines().mutex.unlock();
}

void in_child() {
  calls::in_forked_child();
  for (Engine* e : engines().all) e->in_forked_child();
  engines().mutex.unlock();
}

}  // namespace

ForkedWith::ForkedWith(Engine& engine) : engine_(engine) {
  static const int hook = ::pthread_atfork(before_fork, in_parent, in_child);
  (void)hook;
  std::lock_guard lock(engines().mutex);
  engines().all.push_back(&engine_);
}

ForkedWith::~ForkedWith() {
  std::lock_guard lock(engines().mutex);
  std::erase(engines().all, &engine_);
}

PyEngine::PyEngine(const py::dict& d) {
  set_log_from(d);
  EngineConfig c = config_of(d);
  keep_threads_within(c.engine_core);
  auto store = store_of(d);
  auto program = python_program(d["packages"].cast<std::string>());
  {
    WithoutPythonLock unlocked;
    engine_ = std::make_shared<Engine>(std::move(c), std::move(store), std::move(program));
  }
  watch_exit(engine_);
  start_up();
  forked_with_.emplace(*engine_);
  // The last engine of this process hears of the phases of its backends' work.
  plugin::set_activity_sink([observer = std::weak_ptr<observe::Observer>(engine_->observer())](
                                hvd_comm, uint64_t seq, const std::string& phase, int32_t begin_end) {
    if (auto o = observer.lock()) o->phase(begin_end == 1, phase, seq);
  });
  watch_launcher(d);
  frontend_ = std::make_shared<calls::Frontend>(engine_);
  calls::serve(frontend_);
}

// Waits until all ranks have their communicators. Ctrl-C and the death of a peer end the wait.
void PyEngine::start_up() {
  try {
    await(*engine_->startup());
  } catch (const RequestFailed& e) {
    const std::string text = e.what();
    close();
    throw plugin::BackendError(HVD_E_INTERNAL, 0, 0, text);
  }
}

void PyEngine::watch_launcher(const py::dict& d) {
  if (!d.contains("launcher") || d["launcher"].is_none()) return;
  const auto [pidfd, text] = d["launcher"].cast<std::pair<int, std::string>>();
  try {
    launcher_ = std::make_unique<observe::ProcessWatch>(pidfd, [engine = engine_.get(), text = text] {
      if (engine->stopped()) return;
      observe::log(observe::Level::Error, text + "; the job ends");
      engine->abort(text);
    });
  } catch (const std::exception& e) {  // the job runs without it
    observe::log(observe::Level::Info, std::string("the end of the launcher will not be seen: ") + e.what());
  }
}

PyEngine::~PyEngine() {
  forked_with_.reset();
  if (engine_->belongs_to_parent()) {
    // They stay as they were at the fork.
    new std::shared_ptr<Engine>(std::move(engine_));
    new std::shared_ptr<calls::Frontend>(std::move(frontend_));
    launcher_.release();
    return;
  }
  close();
  {
    WithoutPythonLock unlocked;
    frontend_.reset();
    engine_.reset();
  }
  for (auto& [handle, kept] : handles_) abandon(std::move(kept));
  sweep_abandoned();
}

uint64_t PyEngine::submit(calls::Call&& call, Owners owners, std::shared_ptr<Notifier> notifier) {
  const bool wait = call.waits, on_device = !call.in.empty() && !call.in[0].on_host();
  call.deferred = !call.in.empty() && !call.in[0].staged_from.empty();
  const bool deferred = call.deferred;
  require(!wait || !deferred, "an operation on copies cannot be waited for at once: it begins with begin()");
  std::optional<uint64_t> stream;
  if (on_device && call.in[0].has_stream) stream = reinterpret_cast<uint64_t>(call.in[0].stream);
  call.site = call_site();
  if (!abandoned_.empty()) sweep_abandoned();
  if (!wait) owners.hold_memory();
  auto request = calls::submit(*frontend_, std::move(call));
  if (!wait) {
    const py::object inputs = deferred ? owners.inputs() : py::object();
    const uint64_t handle = keep(std::move(request), std::move(owners), std::move(notifier));
    // Before Python runs a signal handler, whose exception may cost the caller the handle.
    if (deferred) note_deferred(inputs, handle);
    return handle;
  }
  try {
    await(*request);
    if (on_device) order(*request, stream);
  } catch (...) {
    abandon({std::move(request), std::move(owners)});
    throw;
  }
  return 0;
}

calls::Call PyEngine::reduction(py::handle inputs, py::handle outputs, py::handle name, py::handle reduce_op,
                                py::handle prescale, py::handle postscale, py::handle process_set) {
  calls::Call c{.kind = OpKind::Allreduce};
  checked(c, name, process_set, [&] {
    c.reduce_op = argument<int>(reduce_op, "op", kReduceOp);
    c.in = tensors_of(inputs, inputs.is(outputs));
    c.out = inputs.is(outputs) ? c.in : tensors_of(outputs, true);
    c.prescale = argument<double>(prescale, "prescale_factor", "a number");
    c.postscale = argument<double>(postscale, "postscale_factor", "a number");
  });
  return c;
}

uint64_t PyEngine::allreduce(py::handle inputs, py::handle outputs, py::handle name, py::handle reduce_op,
                             py::handle prescale, py::handle postscale, py::handle process_set, bool wait) {
  calls::Call c = reduction(inputs, outputs, name, reduce_op, prescale, postscale, process_set);
  c.waits = wait;
  return submit(std::move(c), {inputs, outputs});
}

uint64_t PyEngine::allgather(py::handle inputs, py::handle name, py::handle process_set) {
  calls::Call c{.kind = OpKind::Allgather};
  checked(c, name, process_set, [&] { c.in = tensors_of(inputs, false); });
  return submit(std::move(c), {inputs, {}});
}

uint64_t PyEngine::broadcast(py::handle inputs, py::handle outputs, py::handle root, py::handle name,
                             py::handle process_set, bool wait) {
  calls::Call c{.kind = OpKind::Broadcast, .waits = wait};
  checked(c, name, process_set, [&] {
    c.in = tensors_of(inputs, inputs.is(outputs));
    c.out = inputs.is(outputs) ? c.in : tensors_of(outputs, true);
    c.root = argument<int>(root, "root_rank", "a rank");
  });
  return submit(std::move(c), {inputs, outputs});
}

uint64_t PyEngine::alltoall(py::handle inputs, py::handle row_splits, py::handle name, py::handle process_set) {
  calls::Call c{.kind = OpKind::Alltoall};
  checked(c, name, process_set, [&] {
    c.in = tensors_of(inputs, false);
    c.splits = argument<std::vector<std::vector<int64_t>>>(row_splits, "splits", "lists of whole numbers");
  });
  return submit(std::move(c), {inputs, {}});
}

uint64_t PyEngine::reducescatter(py::handle inputs, py::handle outputs, py::handle name, py::handle reduce_op,
                                 py::handle prescale, py::handle postscale, py::handle process_set) {
  calls::Call c{.kind = OpKind::Reducescatter};
  checked(c, name, process_set, [&] {
    c.in = tensors_of(inputs, false);
    c.out = tensors_of(outputs, true);
    c.reduce_op = argument<int>(reduce_op, "op", kReduceOp);
    c.prescale = argument<double>(prescale, "prescale_factor", "a number");
    c.postscale = argument<double>(postscale, "postscale_factor", "a number");
    require(c.in.size() == c.out.size(), "as many outputs as inputs are needed: ", c.in.size(), " inputs, ",
            c.out.size(), " outputs");
  });
  return submit(std::move(c), {inputs, outputs});
}

int64_t PyEngine::scattered_rows(int64_t rows, int process_set) {
  return calls::scattered_rows(*engine_, rows, process_set);
}

uint64_t PyEngine::add_process_set(std::vector<int32_t> ranks, const std::optional<py::dict>& backends,
                                   std::string chosen) {
  std::sort(ranks.begin(), ranks.end());
  EngineConfig own;
  if (backends) read_choice(*backends, own);
  return keep(engine_->add_process_set(std::move(ranks), call_site(), backends ? &own : nullptr, std::move(chosen)));
}

uint64_t PyEngine::remove_process_set(int process_set) {
  return keep(engine_->remove_process_set(process_set, call_site()));
}

int PyEngine::process_set_of(uint64_t handle) { return find(handle)->process_set; }

std::map<int32_t, std::vector<int32_t>> PyEngine::process_sets() { return engine_->process_sets().all(); }

std::vector<int64_t> PyEngine::received_splits(uint64_t handle, size_t index) {
  auto request = find(handle);
  require(request->ok() && index < request->received_splits.size(), "this handle has no such received splits");
  return request->received_splits[index];
}

uint64_t PyEngine::barrier(py::handle process_set, bool wait) {
  calls::Call c{.kind = OpKind::Barrier, .waits = wait};
  checked(c, py::none(), process_set, [] {});
  return submit(std::move(c), {});
}

uint64_t PyEngine::create_window(std::vector<int64_t> shape, int dtype, py::handle process_set) {
  calls::Call c{.kind = OpKind::CreateWindow};
  checked(c, py::none(), process_set, [&] {
    require(dtype >= 0 && dtype < HVD_DTYPE_COUNT, "unknown number of an element type: ", dtype);
    uint64_t bytes = types::dtype_bytes(dtype);
    for (const int64_t d : shape)
      require(d >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes) && bytes <= INT64_MAX,
              "a shape needs dimensions of 0 or more, and memory that an address space holds");
    c.in.push_back({.data = nullptr, .dtype = dtype, .shape = std::move(shape)});
  });
  return submit(std::move(c), {});
}

std::string PyEngine::no_window(uint64_t handle) {
  const auto request = find(handle);
  require(request->ok() && !request->outputs.empty(), "this handle has no output");
  return request->outputs[0].no_window;
}

uint64_t PyEngine::join() { return keep(engine_->join(nullptr, call_site())); }

void PyEngine::announce_weights(const std::string& name,
                                const std::vector<std::tuple<std::string, uint64_t, uint64_t>>& weights,
                                const std::string& remedy, int process_set) {
  std::vector<control::WeightDigest> digests;
  for (const auto& [parameter, elements, digest] : weights) digests.push_back({parameter, elements, digest});
  engine_->announce_weights(process_set, name, std::move(digests), remedy);
}

void PyEngine::poison(const std::optional<std::string>& name, const std::string& text, int process_set,
                      const std::string& operation) {
  for (size_t k = 0; k < types::kOpKinds; ++k) {
    const auto kind = static_cast<types::OpKind>(k);
    if (kind == OpKind::Join || operation != types::op_name(kind)) continue;
    if (types::changes_sets(kind)) return engine_->poison(0, kind, control::kSetsName, text);
    return engine_->poison(process_set, kind, name, text);
  }
  throw InvalidRequest("unknown operation '" + operation + "'");
}

void PyEngine::shutdown(const std::string& text, double timeout_s) {
  const int64_t deadline = observe::now_ns() + static_cast<int64_t>(timeout_s * 1e9);
  bool done = false;
  wait_in_slices([&] { return done; }, [&](int64_t ns) { return done = engine_->shutdown(text, deadline, ns); });
}

void PyEngine::abort(const std::string& cause) {
  WithoutPythonLock unlocked;
  engine_->abort(cause);
}

void PyEngine::close() {
  WithoutPythonLock unlocked;
  if (engine_->belongs_to_parent()) return;
  launcher_.reset();
  if (frontend_) calls::withdraw(*frontend_);
  engine_->close();
  if (engine_->left_behind()) new std::shared_ptr<Engine>(engine_);  // a thread of it goes on using it
  if (frontend_) frontend_->finish();
}

void bind_engine(py::module_& m) {
  py::class_<PyEngine> engine(m, "Engine", "The engine of this process; hvd_core._runtime.runtime makes and keeps it.");
  bind_groups(engine);
  bind_allreduce(engine);
  engine.def(py::init<const py::dict&>(), py::arg("config"))
      .def("allgather", &PyEngine::allgather, py::arg("inputs"), py::arg("name"), py::arg("process_set") = 0)
      .def("broadcast", &PyEngine::broadcast, py::arg("inputs"), py::arg("outputs"), py::arg("root_rank"),
           py::arg("name"), py::arg("process_set") = 0, py::arg("wait") = false)
      .def("alltoall", &PyEngine::alltoall, py::arg("inputs"), py::arg("splits"), py::arg("name"),
           py::arg("process_set") = 0)
      .def("reducescatter", &PyEngine::reducescatter, py::arg("inputs"), py::arg("outputs"), py::arg("name"),
           py::arg("op"), py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("process_set") = 0)
      .def("scattered_rows", &PyEngine::scattered_rows, py::arg("rows"), py::arg("process_set") = 0)
      .def("add_process_set", &PyEngine::add_process_set, py::arg("ranks"), py::arg("backends") = py::none(),
           py::arg("chosen") = "")
      .def("remove_process_set", &PyEngine::remove_process_set, py::arg("process_set"))
      .def("process_set_of", &PyEngine::process_set_of, py::arg("handle"))
      .def("process_sets", &PyEngine::process_sets)
      .def("received_splits", &PyEngine::received_splits, py::arg("handle"), py::arg("index") = 0)
      .def("barrier", &PyEngine::barrier, py::arg("process_set") = 0, py::arg("wait") = false)
      .def("create_window", &PyEngine::create_window, py::arg("shape"), py::arg("dtype"), py::arg("process_set") = 0)
      .def("no_window", &PyEngine::no_window, py::arg("handle"))
      .def("join", &PyEngine::join)
      .def("announce_weights", &PyEngine::announce_weights, py::arg("name"), py::arg("weights"), py::arg("remedy"),
           py::arg("process_set") = 0)
      .def("poison", &PyEngine::poison, py::arg("name"), py::arg("text"), py::arg("process_set") = 0,
           py::arg("operation") = "allreduce")
      .def("switch_timeline", &PyEngine::switch_timeline, py::arg("path"), py::arg("mark_cycles") = false,
           py::arg("all_ranks") = false)
      .def("poll", &PyEngine::poll)
      .def("wait", &PyEngine::wait)
      .def("wait_many", &PyEngine::wait_many)
      .def("begin", &PyEngine::begin, py::arg("handle"))
      .def("give_up", &PyEngine::give_up, py::arg("handle"), py::arg("text"))
      .def("known", &PyEngine::known)
      .def("release", &PyEngine::release)
      .def("output", &PyEngine::output)
      .def("output_array", &PyEngine::output_array)
      .def("output_count", &PyEngine::output_count)
      .def("output_info", &PyEngine::output_info, py::arg("handle"), py::arg("index") = 0)
      .def("copy_output", &PyEngine::copy_output, py::arg("handle"), py::arg("index"), py::arg("tensor"))
      .def("order_after", &PyEngine::order_after, py::arg("handle"), py::arg("stream"))
      .def("device_types", &PyEngine::device_types)
      .def("serves", &PyEngine::serves)
      .def("why_not_served", &PyEngine::why_not_served, py::arg("device_type"))
      .def("last_joined", &PyEngine::last_joined)
      .def("shutdown", &PyEngine::shutdown, py::arg("text"), py::arg("timeout_s"))
      .def("abort", &PyEngine::abort)
      .def("close", &PyEngine::close)
      .def("backend_info", &PyEngine::backend_info)
      .def("backend_fact", &PyEngine::backend_fact, py::arg("backend"), py::arg("key"))
      .def_property_readonly("checks_consistency", &PyEngine::checks_consistency)
      .def_property_readonly("stopped", &PyEngine::stopped)
      .def_property_readonly("aborted", &PyEngine::aborted)
      .def_property_readonly("stalled_ranks", &PyEngine::stalled_ranks);
}

}  // namespace hvd::bind
