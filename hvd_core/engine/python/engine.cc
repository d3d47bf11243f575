// See engine.h.
#include "engine/python/engine.h"

#include <pthread.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <set>
#include <string>

#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/calls/checks.h"
#include "engine/plugins/host_api.h"
#include "engine/python/arguments.h"
#include "engine/python/engine_config.h"
#include "engine/python/gil.h"
#include "engine/python/plugin_phases.h"
#include "engine/python/program.h"
#include "engine/python/tensor_view.h"
#include "engine/recorder/observer.h"

namespace py = pybind11;

namespace hvd::python {

using base::OpKind;
using calls::require;

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
  frontend::in_forked_child();
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
  plugins::set_activity_sink([observer = std::weak_ptr<recorder::Observer>(engine_->observer())](
                                 hvd_comm, uint64_t seq, const std::string& phase, int32_t begin_end) {
    if (auto o = observer.lock()) o->phase(begin_end == 1, phase, seq);
  });
  watch_launcher(d);
  frontend_ = std::make_shared<frontend::Frontend>(engine_);
  frontend::serve(frontend_);
}

// Waits until all ranks have their communicators. Ctrl-C and the death of a peer end the wait.
void PyEngine::start_up() {
  try {
    await(*engine_->startup());
  } catch (const RequestFailed& e) {
    const std::string text = e.what();
    close();
    throw plugins::BackendError(HVD_E_INTERNAL, 0, 0, text);
  }
}

void PyEngine::watch_launcher(const py::dict& d) {
  if (!d.contains("launcher") || d["launcher"].is_none()) return;
  const auto [pidfd, text] = d["launcher"].cast<std::pair<int, std::string>>();
  try {
    launcher_ = std::make_unique<base::ProcessWatch>(pidfd, [engine = engine_.get(), text = text] {
      if (engine->stopped()) return;
      base::log(base::Level::Error, text + "; the job ends");
      engine->abort(text);
    });
  } catch (const std::exception& e) {  // the job runs without it
    base::log(base::Level::Info, std::string("the end of the launcher will not be seen: ") + e.what());
  }
}

PyEngine::~PyEngine() {
  forked_with_.reset();
  if (engine_->belongs_to_parent()) {
    // They stay as they were at the fork.
    new std::shared_ptr<Engine>(std::move(engine_));
    new std::shared_ptr<frontend::Frontend>(std::move(frontend_));
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

uint64_t PyEngine::submit(frontend::Call&& call, Owners owners, std::shared_ptr<Notifier> notifier) {
  const bool wait = call.waits, on_device = !call.in.empty() && !call.in[0].on_host();
  call.deferred = !call.in.empty() && !call.in[0].staged_from.empty();
  const bool deferred = call.deferred;
  require(!wait || !deferred, "an operation on copies cannot be waited for at once: it begins with begin()");
  std::optional<uint64_t> stream;
  if (on_device && call.in[0].has_stream) stream = reinterpret_cast<uint64_t>(call.in[0].stream);
  call.site = call_site();
  if (!abandoned_.empty()) sweep_abandoned();
  if (!wait) owners.hold_memory();
  auto request = frontend::submit(*frontend_, std::move(call));
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

frontend::Call PyEngine::reduction(py::handle inputs, py::handle outputs, py::handle name, py::handle reduce_op,
                                   py::handle prescale, py::handle postscale, py::handle process_set) {
  frontend::Call c{.kind = OpKind::Allreduce};
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
  frontend::Call c = reduction(inputs, outputs, name, reduce_op, prescale, postscale, process_set);
  c.waits = wait;
  return submit(std::move(c), {inputs, outputs});
}

uint64_t PyEngine::allgather(py::handle inputs, py::handle name, py::handle process_set) {
  frontend::Call c{.kind = OpKind::Allgather};
  checked(c, name, process_set, [&] { c.in = tensors_of(inputs, false); });
  return submit(std::move(c), {inputs, {}});
}

uint64_t PyEngine::broadcast(py::handle inputs, py::handle outputs, py::handle root, py::handle name,
                             py::handle process_set, bool wait) {
  frontend::Call c{.kind = OpKind::Broadcast, .waits = wait};
  checked(c, name, process_set, [&] {
    c.in = tensors_of(inputs, inputs.is(outputs));
    c.out = inputs.is(outputs) ? c.in : tensors_of(outputs, true);
    c.root = argument<int>(root, "root_rank", "a rank");
  });
  return submit(std::move(c), {inputs, outputs});
}

uint64_t PyEngine::alltoall(py::handle inputs, py::handle row_splits, py::handle name, py::handle process_set) {
  frontend::Call c{.kind = OpKind::Alltoall};
  checked(c, name, process_set, [&] {
    c.in = tensors_of(inputs, false);
    c.splits = argument<std::vector<std::vector<int64_t>>>(row_splits, "splits", "lists of whole numbers");
  });
  return submit(std::move(c), {inputs, {}});
}

uint64_t PyEngine::reducescatter(py::handle inputs, py::handle outputs, py::handle name, py::handle reduce_op,
                                 py::handle prescale, py::handle postscale, py::handle process_set) {
  frontend::Call c{.kind = OpKind::Reducescatter};
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
  return frontend::scattered_rows(*engine_, rows, process_set);
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
  frontend::Call c{.kind = OpKind::Barrier, .waits = wait};
  checked(c, py::none(), process_set, [] {});
  return submit(std::move(c), {});
}

uint64_t PyEngine::create_window(std::vector<int64_t> shape, int dtype, py::handle process_set) {
  frontend::Call c{.kind = OpKind::CreateWindow};
  checked(c, py::none(), process_set, [&] {
    require(dtype >= 0 && dtype < HVD_DTYPE_COUNT, "unknown number of an element type: ", dtype);
    uint64_t bytes = base::dtype_bytes(dtype);
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
  std::vector<agreement::WeightDigest> digests;
  for (const auto& [parameter, elements, digest] : weights) digests.push_back({parameter, elements, digest});
  engine_->announce_weights(process_set, name, std::move(digests), remedy);
}

void PyEngine::poison(const std::optional<std::string>& name, const std::string& text, int process_set,
                      const std::string& operation) {
  for (size_t k = 0; k < base::kOpKinds; ++k) {
    const auto kind = static_cast<base::OpKind>(k);
    if (kind == OpKind::Join || operation != base::op_name(kind)) continue;
    if (base::changes_sets(kind)) return engine_->poison(0, kind, agreement::kSetsName, text);
    return engine_->poison(process_set, kind, name, text);
  }
  throw InvalidRequest("unknown operation '" + operation + "'");
}

void PyEngine::shutdown(const std::string& text, double timeout_s) {
  const int64_t deadline = base::now_ns() + static_cast<int64_t>(timeout_s * 1e9);
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
  if (frontend_) frontend::withdraw(*frontend_);
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

}  // namespace hvd::python

namespace py = pybind11;

namespace hvd::python {

// Handles, waiting for requests, and how long the tensors of a request are kept. See engine.h.

using calls::require;

uint64_t PyEngine::keep(calls::RequestRef request, Owners owners, std::shared_ptr<Notifier> notifier) {
  const uint64_t handle = request->handle;
  std::lock_guard lock(handles_mutex_);
  handles_.emplace(handle, Kept{std::move(request), std::move(owners), false, std::move(notifier)});
  return handle;
}

calls::RequestRef PyEngine::find(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  auto it = handles_.find(handle);
  if (it == handles_.end())
    throw InvalidRequest("Handle " + std::to_string(handle) + " was not created or has been cleared.");
  return it->second.request;
}

void PyEngine::begin(uint64_t handle) {
  const auto request = find(handle);
  WithoutPythonLock unlocked;
  engine_->begin(request);
}

void PyEngine::give_up(uint64_t handle, const std::string& text) {
  const auto request = find(handle);
  WithoutPythonLock unlocked;
  engine_->give_up(request, text);
}

bool PyEngine::known(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  return handles_.contains(handle);
}

namespace {

// Deleting the last request of a device may wait until the device can be closed.
void let_go(calls::RequestRef request) {
  if (request->in.empty() || request->in[0].on_host()) return;
  WithoutPythonLock unlocked;
  request.reset();
}

}  // namespace

void PyEngine::release(uint64_t handle) {
  Kept kept;
  {
    std::lock_guard lock(handles_mutex_);
    auto entry = handles_.extract(handle);
    if (entry.empty()) return;
    kept = std::move(entry.mapped());
  }
  if (!kept.request->settled()) return abandon(std::move(kept));
  if (kept.request->failed() && kept.request->lingers) kept.owners.keep_for_good();
  let_go(std::move(kept.request));
}

void PyEngine::abandon(Kept kept) noexcept {
  try {
    if (!kept.request->done()) kept.owners.hold_memory();
    std::list<Kept> one;
    one.push_back(std::move(kept));
    std::lock_guard lock(handles_mutex_);
    abandoned_.splice(abandoned_.end(), one);
  } catch (const std::exception&) {
    kept.owners.keep_for_good();
  }
  sweep_abandoned();
}

// Lets go of the tensors whose operations have ended.
void PyEngine::sweep_abandoned() noexcept {
  std::list<Kept> ended;  // deleted without the mutex: that may run Python code
  {
    std::lock_guard lock(handles_mutex_);
    for (auto at = abandoned_.begin(); at != abandoned_.end();) {
      const auto next = std::next(at);
      if (at->request->done()) ended.splice(ended.end(), abandoned_, at);
      at = next;
    }
  }
  for (Kept& kept : ended) {
    if (kept.request->failed() && kept.request->lingers) kept.owners.keep_for_good();
    let_go(std::move(kept.request));
  }
}

// The framework has given a tensor other memory while an operation wrote to the memory that it had: one warning.
void PyEngine::warn_if_exchanged(uint64_t handle) {
  static bool warned = false;
  py::object written;
  calls::RequestRef request;
  {
    std::lock_guard lock(handles_mutex_);
    const auto it = handles_.find(handle);
    if (warned || it == handles_.end() || it->second.seen_done || !it->second.owners.holds_memory()) return;
    written = py::reinterpret_borrow<py::object>(it->second.owners.written());
    request = it->second.request;
  }
  const auto member = [&](size_t i) -> py::handle {
    if (!PyTuple_Check(written.ptr())) return written;
    return PyTuple_GET_ITEM(written.ptr(), static_cast<Py_ssize_t>(i));
  };
  for (size_t i = 0; i < request->out.size(); ++i) {
    const void* now = address_of(member(i));
    if (!now || now == request->out[i].data || warned) continue;
    warned = true;
    base::log(base::Level::Warning,
              "A tensor was given other memory while '" + *request->item.name +
                  "' was under way; the result is in the memory that it had before. Wait for an operation before "
                  "its tensor gets other memory. (This is reported once.)");
  }
}

void PyEngine::await(calls::Request& request) {
  wait_in_slices([&] { return request.settled(); }, [&](int64_t ns) { return engine_->wait(request, ns); });
  request.throw_if_failed();
}

void PyEngine::switch_timeline(const std::string& path, bool mark_cycles, bool all_ranks) {
  try {
    await(*engine_->switch_timeline(path, mark_cycles, all_ranks));
  } catch (const RequestFailed& e) {
    // Another rank may have left the job already: its end is the end of the timeline too.
    if (!path.empty() || e.failure != base::Failure::JobEnded) throw;
    engine_->observer()->stop_timeline();
  }
  WithoutPythonLock unlocked;
  engine_->observer()->await_stopped_timelines();
}

bool PyEngine::poll(uint64_t handle) {
  const bool done = engine_->poll(*find(handle));
  if (!done) return false;
  std::lock_guard lock(handles_mutex_);
  if (auto it = handles_.find(handle); it != handles_.end()) it->second.seen_done = true;
  return true;
}

void PyEngine::wait(uint64_t handle) {
  await(*find(handle));
  warn_if_exchanged(handle);
}

void PyEngine::finish(py::handle handle, py::handle kept) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(handle.ptr()));
  if (!number) throw py::error_already_set();
  const uint64_t n = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred()) throw py::error_already_set();
  const auto let_go = [&] {
    release(n);
    if (PyDict_DelItem(kept.ptr(), handle.ptr()) != 0) PyErr_Clear();  // another thread was quicker
  };
  try {
    wait(n);
  } catch (const RequestFailed&) {
    let_go();
    throw;
  }
  // A signal that came during the wait: its handler may raise, and then the caller still has the handle.
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  let_go();
}

void PyEngine::wait_many(const std::vector<uint64_t>& handles) {
  std::vector<calls::RequestRef> requests;
  requests.reserve(handles.size());
  for (uint64_t h : handles) requests.push_back(find(h));
  std::optional<RequestFailed> first_error;
  for (auto& r : requests) {
    try {
      await(*r);
      warn_if_exchanged(r->handle);
    } catch (const RequestFailed& e) {
      if (!first_error) first_error = e;
    }
  }
  if (first_error) throw *first_error;
}

calls::Output PyEngine::take_output(uint64_t handle, size_t index) {
  auto request = find(handle);
  require(request->ok() && index < request->outputs.size(), "this handle has no such output");
  require(!request->outputs[index].device_memory, "this output is on a device: copy_output() copies it");
  require(request->outputs[index].memory() != nullptr, "this output was taken already");
  return std::move(request->outputs[index]);
}

py::capsule PyEngine::output(uint64_t handle, size_t index) { return capsule_of(take_output(handle, index)); }

py::object PyEngine::output_array(uint64_t handle, size_t index) { return array_of(take_output(handle, index)); }

size_t PyEngine::output_count(uint64_t handle) { return find(handle)->outputs.size(); }

int PyEngine::last_joined(uint64_t handle) { return find(handle)->last_joined; }

}  // namespace hvd::python

namespace py = pybind11;

namespace hvd::python {

// Operations of front ends whose groups of ranks have calls in one order, each under its number, and process sets that
// their members alone ask for. See engine.h.

using base::OpKind;
using calls::require;

namespace {

OpKind kind_of(const std::string& operation) {
  for (const auto& o : base::kOperations)
    if (operation == o.name && (o.kind <= OpKind::Reducescatter || o.kind == OpKind::Send)) return o.kind;
  throw InvalidRequest("unknown operation '" + operation + "'");
}

int64_t deadline_in(double seconds) { return base::now_ns() + static_cast<int64_t>(std::min(seconds, 1e9) * 1e9); }

}  // namespace

uint64_t PyEngine::ordered(const std::string& operation, const std::string& name, int process_set, py::handle inputs,
                           py::handle outputs, int number, double prescale, const std::vector<int64_t>& row_splits,
                           std::vector<int64_t> received, int64_t unit, double wait_s, int root) {
  const bool receives = operation == "recv", reduces = operation == "reduce";
  const OpKind kind = receives ? OpKind::Send : reduces ? OpKind::Allreduce : kind_of(operation);
  frontend::Call c{.kind = kind, .name = name, .process_set = process_set};
  c.once = true;
  if (c.kind == OpKind::Send) between(c, number, !receives);
  std::shared_ptr<Notifier> notifier;
  try {
    if (!inputs.is_none()) c.in = tensors_of(inputs, inputs.is(outputs));
    if (!outputs.is_none()) c.out = inputs.is(outputs) ? c.in : tensors_of(outputs, true);
    if (c.kind != OpKind::Send) (base::has_reduce_op(c.kind) ? c.reduce_op : c.root) = number;
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
    frontend::refuse(*engine_, c, e.what());
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

void PyEngine::between(frontend::Call& call, int32_t other, bool sends) const {
  call.root = sends ? engine_->config().rank : other;
  call.to = sends ? other : engine_->config().rank;
}

uint64_t PyEngine::message(py::handle tensor, bool sends, py::handle other, py::handle name, py::handle process_set) {
  frontend::Call c{.kind = OpKind::Send};
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
  frontend::Call c{.kind = OpKind::Send, .name = name, .process_set = process_set};
  between(c, other, sends);
  frontend::refuse(*engine_, c, text);
}

// As submit() for a caller that waits, but until a deadline only. Tensors in host memory.
uint64_t PyEngine::wait_at_once(frontend::Call&& call, Owners owners, int64_t deadline_ns) {
  require(call.in.empty() || (call.in[0].on_host() && call.in[0].staged_from.empty()),
          "only an operation on host memory can be waited for at once");
  call.site = call_site();
  if (!abandoned_.empty()) sweep_abandoned();
  auto request = frontend::submit(*frontend_, std::move(call));
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
bool PyEngine::await_until(calls::Request& request, int64_t deadline_ns) {
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

}  // namespace hvd::python

namespace py = pybind11;

namespace hvd::python {

// Devices and backends as Python sees them: order on streams, results in a device's memory, and the service of each
// collective. See engine.h.

using calls::require;

void PyEngine::await_end(calls::Request& request) {
  wait_in_slices([&] { return request.done(); }, [&](int64_t ns) { return engine_->finish(request, ns); });
  request.throw_if_failed();
}

void PyEngine::order(calls::Request& request, std::optional<uint64_t> stream) {
  await(request);
  if (stream && engine_->order_after(request, reinterpret_cast<void*>(*stream))) return;
  await_end(request);
}

void PyEngine::order_after(uint64_t handle, std::optional<uint64_t> stream) { order(*find(handle), stream); }

py::tuple PyEngine::output_info(uint64_t handle, size_t index) {
  auto request = find(handle);
  require(request->ok() && index < request->outputs.size(), "this handle has no such output");
  const calls::Output& o = request->outputs[index];
  return py::make_tuple(py::tuple(py::cast(o.shape)), o.dtype, o.device_type);
}

void PyEngine::copy_output(uint64_t handle, size_t index, py::handle tensor) {
  auto request = find(handle);
  await(*request);
  const auto end = frontend::copy_output(*engine_, *request, index, tensor_of(tensor, true));
  if (!end) return;
  for (bool done = false; !done;) {
    {
      WithoutPythonLock unlocked;
      done = end->wait(base::now_ns() + kSignalSliceNs);
    }
    if (!done && engine_->stopped()) await_end(*request);
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

py::list PyEngine::backend_info() const {
  const auto& backends = engine_->backends();
  py::list found;
  for (const auto& [role, b] : {std::pair{"local", backends.local}, std::pair{"global", backends.global}}) {
    if (!b) continue;
    py::dict d;
    d["role"] = role;
    d["name"] = b->name();
    d["version"] = b->version();
    d["vendor_lib"] = b->vendor_lib();
    d["path"] = b->path();
    d["abi_minor"] = b->abi_minor();
    found.append(std::move(d));
  }
  for (const auto& plan : backends.devices->all()) {
    const std::string& type = plan->type();
    py::dict d;
    d["role"] = "device";
    d["device_type"] = type;
    d["name"] = plan->table()->name();
    d["version"] = plan->table()->version();
    d["vendor_lib"] = plan->table()->vendor_lib();
    d["path"] = plan->table()->path();
    d["abi_minor"] = plan->table()->abi_minor();
    const auto device = plan->opened();
    d["ordinal"] = device ? py::object(py::int_(device->ordinal())) : py::none();
    d["served"] = served(type);
    found.append(std::move(d));
  }
  std::set<std::string> copied;
  for (const auto& [key, note] : backends.notes->all())
    if (!backends.devices->known(key.device)) copied.insert(key.device);
  for (const auto& type : copied) {
    py::dict d;
    d["role"] = "copied by the front end";
    d["device_type"] = type;
    d["served"] = served(type);
    found.append(std::move(d));
  }
  return found;
}

// A backend's code may take its time over it.
std::optional<std::string> PyEngine::backend_fact(const std::string& backend, const std::string& key) const {
  WithoutPythonLock unlocked;
  const auto used = engine_->backend(backend);
  return used ? used->fact(key) : std::nullopt;
}

// The collectives done so far on a device type, with the service of each.
py::list PyEngine::served(const std::string& type) const {
  py::list list;
  for (const auto& [key, note] : engine_->backends().notes->all()) {
    if (key.device != type) continue;
    py::dict d;
    d["collective"] = base::collective_name(key.coll);
    d["dtype"] = base::dtype_name(key.dtype);
    d["op"] = base::reduce_op_name(key.op);
    d["backend"] = note.backend;
    d["served"] = dataplane::service_name(note.served.service);
    d["how"] = note.served.how;
    list.append(std::move(d));
  }
  return list;
}

}  // namespace hvd::python
