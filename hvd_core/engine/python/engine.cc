// The lifecycle of an engine, and its operations in their general form. See engine.h.
#include "engine/python/engine.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "engine/base/dtypes.h"
#include "engine/base/log.h"
#include "engine/base/operations.h"
#include "engine/calls/checks.h"
#include "engine/frontend/submit.h"
#include "engine/plugins/host_api.h"
#include "engine/python/arguments.h"
#include "engine/python/bindings.h"
#include "engine/python/engine_config.h"
#include "engine/python/program.h"
#include "engine/recorder/observer.h"

namespace py = pybind11;

namespace hvd::python {

using namespace py::literals;
using base::OpKind;
using calls::Call;
using calls::require;

// --------------------------------------------------------------------------------------------------------- lifecycle

PyEngine::PyEngine(const py::dict& d) {
  EngineHooks::install();
  set_log_from(d);
  EngineConfig c = config_of(d);
  keep_threads_within(c.engine_core);
  auto store = store_of(d);
  auto program = python_program(d["packages"].cast<std::string>());
  {
    ReleaseGil released;
    engine_ = std::make_shared<Engine>(std::move(c), std::move(store), std::move(program));
  }
  hooks_.emplace(*engine_);
  start_up();
  // The last engine of this process records the phases of its backends' work.
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
  if (engine_->belongs_to_parent()) {
    hooks_.reset();
    // They stay as they were at the fork.
    new std::shared_ptr<Engine>(std::move(engine_));
    new std::shared_ptr<frontend::Frontend>(std::move(frontend_));
    launcher_.release();
    return;
  }
  close();
  hooks_.reset();
  {
    ReleaseGil released;
    frontend_.reset();
    engine_.reset();
  }
  for (auto& [handle, kept] : handles_) abandon(std::move(kept));
  sweep_abandoned();
}

void PyEngine::shutdown(const std::string& text, double timeout_s) {
  const int64_t deadline = base::now_ns() + static_cast<int64_t>(timeout_s * 1e9);
  bool done = false;
  wait_in_slices([&] { return done; }, [&](int64_t ns) { return done = engine_->shutdown(text, deadline, ns); });
}

void PyEngine::close() {
  ReleaseGil released;
  if (engine_->belongs_to_parent()) return;
  launcher_.reset();
  if (frontend_) frontend::withdraw(*frontend_);
  engine_->close();
  if (engine_->left_behind()) new std::shared_ptr<Engine>(engine_);  // a thread of it goes on using it
  if (frontend_) frontend_->finish();
}

// -------------------------------------------------------------------------------------------------------- operations

uint64_t PyEngine::submit(Call&& call, Owners owners, int64_t deadline_ns, std::shared_ptr<Notifier> notifier) {
  const calls::Tensor* const first = call.in.empty() ? nullptr : &call.in[0];
  const bool waits = call.waits, on_device = first && !first->on_host();
  const bool deferred = call.deferred = first && !first->staged_from.empty();
  require(!waits || !deferred, "an operation on copies cannot be waited for at once: it begins with begin()");
  require(!on_device || deadline_ns == kNoDeadline, "only an operation on host memory can be waited for at once");
  std::optional<uint64_t> stream;
  if (on_device && first->has_stream) stream = reinterpret_cast<uint64_t>(first->stream);
  if (!call.site.code) call.site = call_site();
  if (!abandoned_.empty()) sweep_abandoned();
  if (!waits) owners.hold_memory();
  auto request = frontend::submit(*frontend_, std::move(call));
  if (waits) {
    try {
      const bool completed = await(*request, deadline_ns);
      if (completed && on_device) order_after(*request, stream);
      if (completed) return 0;
    } catch (...) {
      abandon({std::move(request), std::move(owners)});
      throw;
    }
    owners.hold_memory();
  }
  const py::object inputs = deferred ? owners.inputs() : py::object();
  const uint64_t handle = keep(std::move(request), std::move(owners), std::move(notifier));
  // Before Python runs a signal handler, whose exception may cost the caller the handle.
  if (deferred) note_deferred(inputs, handle);
  return handle;
}

namespace {

// Runs `read`, which converts arguments of a call. A refused argument is reported to the other ranks, so that their
// calls fail and do not wait.
template <typename Read>
void or_refuse(PyEngine& engine, Call& call, Read&& read) {
  try {
    read();
  } catch (const std::exception& e) {
    frontend::refuse(engine.engine(), call, e.what());
    throw;
  }
}

// First the arguments that identify the call.
template <typename Read>
void read_arguments(PyEngine& engine, Call& call, py::handle name, py::handle process_set, Read&& read) {
  or_refuse(engine, call, [&] {
    call.process_set = argument<int>(process_set, "process_set", "the number of a process set");
    call.name = name_argument(name);
    read();
  });
}

void read_tensors(Call& c, py::handle inputs, py::handle outputs) {
  const bool in_place = inputs.is(outputs);
  c.in = tensors_of(inputs, in_place);
  c.out = in_place ? c.in : tensors_of(outputs, true);
}

void read_reduction(Call& c, py::handle op, py::handle prescale, py::handle postscale) {
  c.reduce_op = argument<int>(op, "op", "the number of a reduce op");
  c.prescale = argument<double>(prescale, "prescale_factor", "a number");
  c.postscale = argument<double>(postscale, "postscale_factor", "a number");
}

uint64_t allgather(PyEngine& engine, py::handle inputs, py::handle name, py::handle process_set) {
  Call c{.kind = OpKind::Allgather};
  read_arguments(engine, c, name, process_set, [&] { c.in = tensors_of(inputs, false); });
  return engine.submit(std::move(c), {inputs, {}});
}

uint64_t broadcast(PyEngine& engine, py::handle inputs, py::handle outputs, py::handle root, py::handle name,
                   py::handle process_set, bool wait) {
  Call c{.kind = OpKind::Broadcast, .waits = wait};
  read_arguments(engine, c, name, process_set, [&] {
    read_tensors(c, inputs, outputs);
    c.root = argument<int>(root, "root_rank", "a rank");
  });
  return engine.submit(std::move(c), {inputs, outputs});
}

// `row_splits`: rows for each rank, one list per tensor; empty: equal shares.
uint64_t alltoall(PyEngine& engine, py::handle inputs, py::handle row_splits, py::handle name, py::handle process_set) {
  Call c{.kind = OpKind::Alltoall};
  read_arguments(engine, c, name, process_set, [&] {
    c.in = tensors_of(inputs, false);
    c.splits = argument<std::vector<std::vector<int64_t>>>(row_splits, "splits", "lists of whole numbers");
  });
  return engine.submit(std::move(c), {inputs, {}});
}

uint64_t reducescatter(PyEngine& engine, py::handle inputs, py::handle outputs, py::handle name, py::handle op,
                       py::handle prescale, py::handle postscale, py::handle process_set) {
  Call c{.kind = OpKind::Reducescatter};
  read_arguments(engine, c, name, process_set, [&] {
    read_tensors(c, inputs, outputs);
    read_reduction(c, op, prescale, postscale);
    require(c.in.size() == c.out.size(), "as many outputs as inputs are needed: ", c.in.size(), " inputs, ",
            c.out.size(), " outputs");
  });
  return engine.submit(std::move(c), {inputs, outputs});
}

uint64_t barrier(PyEngine& engine, py::handle process_set, bool wait) {
  Call c{.kind = OpKind::Barrier, .waits = wait};
  read_arguments(engine, c, py::none(), process_set, [] {});
  return engine.submit(std::move(c), {});
}

uint64_t create_window(PyEngine& engine, std::vector<int64_t> shape, int dtype, py::handle process_set) {
  Call c{.kind = OpKind::CreateWindow};
  read_arguments(engine, c, py::none(), process_set, [&] {
    require(dtype >= 0 && dtype < HVD_DTYPE_COUNT, "unknown number of an element type: ", dtype);
    uint64_t bytes = base::dtype_bytes(dtype);
    for (const int64_t d : shape)
      require(d >= 0 && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(d), &bytes) && bytes <= INT64_MAX,
              "a shape needs dimensions of 0 or more, and memory that an address space holds");
    c.in.push_back({.data = nullptr, .dtype = dtype, .shape = std::move(shape)});
  });
  return engine.submit(std::move(c), {});
}

void set_message_ranks(PyEngine& engine, Call& call, int32_t other, bool sends) {
  const int32_t rank = engine.engine().config().rank;
  call.root = sends ? rank : other;
  call.to = sends ? other : rank;
}

uint64_t message(PyEngine& engine, py::handle tensor, bool sends, py::handle other, py::handle name,
                 py::handle process_set) {
  Call c{.kind = OpKind::Send};
  // First, because a refusal goes to the other rank.
  set_message_ranks(engine, c, argument<int>(other, sends ? "dst" : "src", "a rank"), sends);
  read_arguments(engine, c, name, process_set, [&] { c.in = c.out = tensors_of(tensor, !sends); });
  return engine.submit(std::move(c), {tensor, tensor});
}

void refuse_message(PyEngine& engine, const std::string& text, bool sends, int other,
                    const std::optional<std::string>& name, int process_set) {
  Call c{.kind = OpKind::Send, .name = name, .process_set = process_set};
  set_message_ranks(engine, c, other, sends);
  frontend::refuse(engine.engine(), c, text);
}

OpKind kind_of(const std::string& operation) {
  for (const auto& o : base::kOperations)
    if (operation == o.name && (o.kind <= OpKind::Reducescatter || o.kind == OpKind::Send)) return o.kind;
  throw InvalidRequest("unknown operation '" + operation + "'");
}

// For front ends whose groups of ranks have calls in one order, each under its number. Returns a handle; or 0 if
// `wait_s` is not negative and the operation is done within that time. `operation` may be "reduce" and "recv" too,
// `number` is the reduce op or the root, and `root` the root of a reduce. `row_splits` and `received`: for each tensor
// of an alltoall one number for each rank, behind each other.
uint64_t ordered(PyEngine& engine, const std::string& operation, const std::string& name, int process_set,
                 py::handle inputs, py::handle outputs, int number, double prescale,
                 const std::vector<int64_t>& row_splits, std::vector<int64_t> received, int64_t unit, double wait_s,
                 int root) {
  const bool receives = operation == "recv", reduces = operation == "reduce";
  const OpKind kind = receives ? OpKind::Send : reduces ? OpKind::Allreduce : kind_of(operation);
  Call c{.kind = kind, .name = name, .process_set = process_set};
  c.once = true;
  c.waits = wait_s >= 0;
  if (kind == OpKind::Send)
    set_message_ranks(engine, c, number, !receives);
  else
    (base::has_reduce_op(kind) ? c.reduce_op : c.root) = number;
  if (reduces) c.to = root;
  c.prescale = prescale;
  c.received = std::move(received);
  c.unit = unit;
  or_refuse(engine, c, [&] {
    const bool in_place = inputs.is(outputs);
    if (!inputs.is_none()) c.in = tensors_of(inputs, in_place);
    if (!outputs.is_none()) c.out = in_place ? c.in : tensors_of(outputs, true);
    if (row_splits.empty()) return;
    require(!c.in.empty() && row_splits.size() % c.in.size() == 0, "splits are needed for each tensor");
    const auto each = static_cast<ptrdiff_t>(row_splits.size() / c.in.size());
    for (auto at = row_splits.begin(); at != row_splits.end(); at += each) c.splits.emplace_back(at, at + each);
  });
  if (c.waits) return engine.submit(std::move(c), {inputs, outputs}, deadline_in(wait_s));
  return engine.submit_with_notifier(std::move(c), {inputs, outputs});
}

uint64_t add_process_set(PyEngine& engine, std::vector<int32_t> ranks, const std::optional<py::dict>& backends,
                         std::string chosen) {
  std::sort(ranks.begin(), ranks.end());
  EngineConfig own;
  if (backends) read_choice(*backends, own);
  return engine.keep(
      engine.engine().add_process_set(std::move(ranks), call_site(), backends ? &own : nullptr, std::move(chosen)));
}

using Weight = std::tuple<std::string, uint64_t, uint64_t>;  // name, number of elements, digest of the values

void announce_weights(PyEngine& engine, const std::string& name, const std::vector<Weight>& weights,
                      const std::string& remedy, int process_set) {
  std::vector<agreement::WeightDigest> digests;
  for (const auto& [parameter, elements, digest] : weights) digests.push_back({parameter, elements, digest});
  engine.engine().announce_weights(process_set, name, std::move(digests), remedy);
}

void poison(PyEngine& engine, const std::optional<std::string>& name, const std::string& text, int process_set,
            const std::string& operation) {
  for (size_t k = 0; k < base::kOpKinds; ++k) {
    const auto kind = static_cast<OpKind>(k);
    if (kind == OpKind::Join || operation != base::op_name(kind)) continue;
    if (base::changes_sets(kind)) return engine.engine().poison(0, kind, agreement::kSetsName, text);
    return engine.engine().poison(process_set, kind, name, text);
  }
  throw InvalidRequest("unknown operation '" + operation + "'");
}

// See Engine::switch_timeline. Waits until this rank has come to that point of the log, and until a timeline that has
// ended is complete on the disk.
void switch_timeline(PyEngine& engine, const std::string& path, bool mark_cycles, bool all_ranks) {
  try {
    engine.await(*engine.engine().switch_timeline(path, mark_cycles, all_ranks));
  } catch (const RequestFailed& e) {
    // Another rank may have left the job already: its end is the end of the timeline too.
    if (!path.empty() || e.failure != base::Failure::JobEnded) throw;
    engine.engine().observer()->stop_timeline();
  }
  ReleaseGil released;
  engine.engine().observer()->await_stopped_timelines();
}

// ----------------------------------------------------------------------------------------------- results and backends

const calls::Output& output_of(const calls::Request& request, size_t index) {
  require(request.ok() && index < request.outputs.size(), "this handle has no such output");
  return request.outputs[index];
}

std::vector<int64_t> received_splits(PyEngine& engine, uint64_t handle, size_t index) {
  const auto request = engine.find(handle);
  require(request->ok() && index < request->received_splits.size(), "this handle has no such received splits");
  return request->received_splits[index];
}

py::tuple output_info(PyEngine& engine, uint64_t handle, size_t index) {
  const auto request = engine.find(handle);
  const calls::Output& o = output_of(*request, index);
  return py::make_tuple(py::tuple(py::cast(o.shape)), o.dtype, o.device_type);
}

void copy_output(PyEngine& engine, uint64_t handle, size_t index, py::handle tensor) {
  const auto request = engine.find(handle);
  engine.await(*request);
  const auto end = frontend::copy_output(engine.engine(), *request, index, tensor_of(tensor, true));
  if (!end) return;
  for (bool done = false; !done;) {
    {
      ReleaseGil released;
      done = end->wait(base::now_ns() + kSignalSliceNs);
    }
    if (!done && engine.engine().stopped()) engine.await_end(*request);
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

// The collectives done so far on a device type, with the service of each.
py::list served(const Engine& engine, const std::string& type) {
  py::list list;
  for (const auto& [key, note] : engine.backends().notes->all()) {
    if (key.device != type) continue;
    list.append(py::dict("collective"_a = base::collective_name(key.coll), "dtype"_a = base::dtype_name(key.dtype),
                         "op"_a = base::reduce_op_name(key.op), "backend"_a = note.backend,
                         "served"_a = dataplane::service_name(note.served.service), "how"_a = note.served.how));
  }
  return list;
}

py::dict described(const char* role, const plugins::Backend& b) {
  return py::dict("role"_a = role, "name"_a = b.name(), "version"_a = b.version(), "vendor_lib"_a = b.vendor_lib(),
                  "path"_a = b.path(), "abi_minor"_a = b.abi_minor());
}

py::list backend_info(PyEngine& self) {
  const Engine& engine = self.engine();
  const auto& backends = engine.backends();
  py::list found;
  for (const auto& [role, b] : {std::pair{"local", backends.local}, std::pair{"global", backends.global}}) {
    if (b) found.append(described(role, *b));
  }
  for (const auto& plan : backends.devices->all()) {
    py::dict d = described("device", *plan->table());
    d["device_type"] = plan->type();
    const auto device = plan->opened();
    d["ordinal"] = device ? py::object(py::int_(device->ordinal())) : py::none();
    d["served"] = served(engine, plan->type());
    found.append(std::move(d));
  }
  std::set<std::string> copied;
  for (const auto& [key, note] : backends.notes->all())
    if (!backends.devices->known(key.device)) copied.insert(key.device);
  for (const auto& type : copied)
    found.append(
        py::dict("role"_a = "copied by the front end", "device_type"_a = type, "served"_a = served(engine, type)));
  return found;
}

}  // namespace

uint64_t allreduce(PyEngine& engine, py::handle inputs, py::handle outputs, py::handle name, py::handle op,
                   py::handle prescale, py::handle postscale, py::handle process_set, bool wait) {
  Call c{.kind = OpKind::Allreduce, .waits = wait};
  read_arguments(engine, c, name, process_set, [&] {
    read_tensors(c, inputs, outputs);
    read_reduction(c, op, prescale, postscale);
  });
  return engine.submit(std::move(c), {inputs, outputs});
}

void bind_engine(py::module_& m) {
  py::class_<PyEngine> engine(m, "Engine", "The engine of this process; hvd_core._runtime.runtime makes and keeps it.");
  bind_allreduce(m, engine);
  engine.def(py::init<const py::dict&>(), py::arg("config"));

  // ---- operations, each of which returns a handle; 0 with `wait`, which waits for the result
  engine.def("allgather", &allgather, py::arg("inputs"), py::arg("name"), py::arg("process_set") = 0)
      .def("broadcast", &broadcast, py::arg("inputs"), py::arg("outputs"), py::arg("root_rank"), py::arg("name"),
           py::arg("process_set") = 0, py::arg("wait") = false)
      .def("alltoall", &alltoall, py::arg("inputs"), py::arg("splits"), py::arg("name"), py::arg("process_set") = 0)
      .def("reducescatter", &reducescatter, py::arg("inputs"), py::arg("outputs"), py::arg("name"), py::arg("op"),
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("process_set") = 0)
      .def("barrier", &barrier, py::arg("process_set") = 0, py::arg("wait") = false)
      .def("create_window", &create_window, py::arg("shape"), py::arg("dtype"), py::arg("process_set") = 0,
           "Its output is memory that the ranks of the set share, where they can; no_window() says why it is not.")
      .def("join", [](PyEngine& e) { return e.keep(e.engine().join(nullptr, call_site())); })
      .def("message", &message, py::arg("tensor"), py::arg("sends"), py::arg("other"), py::arg("name"),
           py::arg("process_set") = 0)
      .def("ordered", &ordered, py::arg("operation"), py::arg("name"), py::arg("process_set"), py::arg("inputs"),
           py::arg("outputs"), py::arg("number") = 0, py::arg("prescale") = 1.0,
           py::arg("splits") = std::vector<int64_t>(), py::arg("received") = std::vector<int64_t>(),
           py::arg("unit") = -1, py::arg("wait_s") = -1.0, py::arg("root") = -1)
      .def("refuse_message", &refuse_message, py::arg("text"), py::arg("sends"), py::arg("other"), py::arg("name"),
           py::arg("process_set") = 0, "A message has failed before it was submitted.")
      .def("poison", &poison, py::arg("name"), py::arg("text"), py::arg("process_set") = 0,
           py::arg("operation") = "allreduce")
      .def("announce_weights", &announce_weights, py::arg("name"), py::arg("weights"), py::arg("remedy"),
           py::arg("process_set") = 0);

  // ---- process sets
  engine
      .def("add_process_set", &add_process_set, py::arg("ranks"), py::arg("backends") = py::none(),
           py::arg("chosen") = "")
      .def(
          "remove_process_set",
          [](PyEngine& e, int set) { return e.keep(e.engine().remove_process_set(set, call_site())); },
          py::arg("process_set"))
      .def(
          "add_members_set",
          [](PyEngine& e, std::vector<int32_t> ranks, const std::string& label) {
            return e.keep(e.engine().add_members_set(std::move(ranks), label, call_site()));
          },
          py::arg("ranks"), py::arg("label"))
      .def(
          "remove_members_set",
          [](PyEngine& e, int set) { return e.keep(e.engine().remove_members_set(set, call_site())); },
          py::arg("process_set"))
      .def("process_sets", [](PyEngine& e) { return e.engine().process_sets().all(); })
      .def(
          "process_set_of", [](PyEngine& e, uint64_t handle) { return e.find(handle)->process_set; }, py::arg("handle"))
      .def(
          "scattered_rows",
          [](PyEngine& e, int64_t rows, int set) { return frontend::scattered_rows(e.engine(), rows, set); },
          py::arg("rows"), py::arg("process_set") = 0,
          "The number of rows that this rank gets from a reducescatter of `rows` rows.");

  // ---- handles
  engine.def("known", &PyEngine::known)
      .def("poll", &PyEngine::poll)
      .def("wait", &PyEngine::wait)
      .def("wait_many", &PyEngine::wait_many)
      .def(
          "wait_for", [](PyEngine& e, uint64_t handle, double s) { return e.wait_until(handle, deadline_in(s)); },
          py::arg("handle"), py::arg("seconds"), "False if the operation is still under way after that time.")
      .def(
          "notify", &PyEngine::notify, py::arg("handle"), py::arg("callback"),
          "For a handle of ordered(): calls `callback` without arguments, on the completion thread, when the operation "
          "is done. False if it is done already; then `callback` is not called.")
      .def("release", &PyEngine::release)
      .def(
          "release_each",
          [](PyEngine& e, const std::vector<uint64_t>& handles) {
            for (const uint64_t handle : handles) e.release(handle);
          },
          py::arg("handles"))
      .def("finish", &PyEngine::finish, py::arg("handle"), py::arg("kept"),
           "Waits for an operation, lets go of its tensors and deletes kept[handle], also if it has failed.")
      .def(
          "begin",
          [](PyEngine& e, uint64_t handle) {
            const auto request = e.find(handle);
            ReleaseGil released;
            e.engine().begin(request);
          },
          py::arg("handle"), "For an operation on copies of a device's tensors (TensorRef): the copies are made.")
      .def(
          "give_up",
          [](PyEngine& e, uint64_t handle, const std::string& text) {
            const auto request = e.find(handle);
            ReleaseGil released;
            e.engine().give_up(request, text);
          },
          py::arg("handle"), py::arg("text"), "The copies cannot be made.");

  // ---- results
  engine
      .def("output",
           [](PyEngine& e, uint64_t handle, size_t index) { return capsule_of(e.take_output(handle, index)); })
      .def("output_array",
           [](PyEngine& e, uint64_t handle, size_t index) { return array_of(e.take_output(handle, index)); })
      .def("output_info", &output_info, py::arg("handle"), py::arg("index") = 0)
      .def("copy_output", &copy_output, py::arg("handle"), py::arg("index"), py::arg("tensor"))
      .def(
          "order_after",
          [](PyEngine& e, uint64_t handle, std::optional<uint64_t> stream) { e.order_after(*e.find(handle), stream); },
          py::arg("handle"), py::arg("stream"))
      .def("received_splits", &received_splits, py::arg("handle"), py::arg("index") = 0)
      .def(
          "no_window", [](PyEngine& e, uint64_t handle) { return output_of(*e.find(handle), 0).no_window; },
          py::arg("handle"))
      .def("last_joined", [](PyEngine& e, uint64_t handle) { return e.find(handle)->last_joined; });

  // ---- devices and backends
  engine.def("device_types", [](PyEngine& e) { return e.engine().device_types(); })
      .def("serves", [](PyEngine& e, const std::string& device_type) { return e.engine().serves(device_type); })
      .def(
          "why_not_served",
          [](PyEngine& e, const std::string& device_type) { return e.engine().why_not_served(device_type); },
          py::arg("device_type"))
      .def("backend_info", &backend_info)
      .def(
          "backend_fact",
          [](PyEngine& e, const std::string& backend, const std::string& key) -> std::optional<std::string> {
            ReleaseGil released;  // a backend's code may take its time over it
            const auto used = e.engine().backend(backend);
            return used ? used->fact(key) : std::nullopt;
          },
          py::arg("backend"), py::arg("key"), "None also for a backend that this job does not use.");

  // ---- the job
  engine
      .def("switch_timeline", &switch_timeline, py::arg("path"), py::arg("mark_cycles") = false,
           py::arg("all_ranks") = false)
      .def("shutdown", &PyEngine::shutdown, py::arg("text"), py::arg("timeout_s"))
      .def("abort",
           [](PyEngine& e, const std::string& cause) {
             ReleaseGil released;
             e.engine().abort(cause);
           })
      .def("close", &PyEngine::close)
      .def_property_readonly("checks_consistency", [](PyEngine& e) { return e.engine().config().check_consistency; })
      .def_property_readonly("stopped", [](PyEngine& e) { return e.engine().stopped(); })
      .def_property_readonly("aborted", [](PyEngine& e) { return e.engine().aborted(); })
      .def_property_readonly("stalled_ranks", [](PyEngine& e) { return e.engine().stalled_ranks(); });
}

}  // namespace hvd::python
