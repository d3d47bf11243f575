// See py_engine.h.
#include "engine/bind/py_engine.h"

#include <pthread.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "engine/bind/tensor_view.h"
#include "engine/observe/affinity.h"
#include "engine/observe/log.h"
#include "engine/plugin/host_api.h"

namespace py = pybind11;

namespace hvd::bind {
namespace {

constexpr int64_t kSignalSliceNs = 100'000'000;

// A store for a job of one process: nobody to meet.
class LocalStore final : public plugin::Store {
 public:
  void set(const std::string& key, std::string_view value) override { values_[key] = value; }
  std::string get(const std::string& key, int64_t) override {
    auto it = values_.find(key);
    if (it == values_.end()) throw plugin::BackendError(HVD_E_TIMEOUT, 0, 0, "'" + key + "' is not in the store");
    return it->second;
  }
  int64_t add(const std::string& key, int64_t delta) override { return counters_[key] += delta; }
  void del(const std::string& key) override { values_.erase(key); }

 private:
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, int64_t> counters_;
};

// Engines of this process, for the fork hook: the child must know that they are not its own. Part of the binding, not
// of the engine, because pthread_atfork has no context argument.
std::vector<Engine*>& engines() {
  static std::vector<Engine*> all;
  return all;
}

void in_child() {
  for (Engine* e : engines()) e->in_forked_child();
}

LinkConfig link_of(const py::dict& d) {
  LinkConfig l;
  l.peer = d["peer"].cast<int32_t>();
  l.is_parent = d["is_parent"].cast<bool>();
  l.subtree = d["subtree"].cast<std::vector<int32_t>>();
  l.sock_fd = d["sock_fd"].cast<int>();
  if (l.sock_fd >= 0) return l;
  l.slot = d["slot"].cast<uint32_t>();
  l.peer_bells = d["peer_bells"].cast<std::array<int, 2>>();
  l.guard_fd = d["guard_fd"].cast<int>();
  l.peer_pid = d["peer_pid"].cast<int32_t>();
  return l;
}

EngineConfig config_of(const py::dict& d) {
  EngineConfig c;
  c.rank = d["rank"].cast<int32_t>();
  c.size = d["size"].cast<int32_t>();
  c.hosts = d["hosts"].cast<std::vector<int32_t>>();
  c.host_names = d["host_names"].cast<std::vector<std::string>>();
  c.job = d["job"].cast<std::string>();
  for (auto l : d["links"].cast<py::list>()) c.links.push_back(link_of(l.cast<py::dict>()));
  c.segment_fd = d["segment_fd"].cast<int>();
  c.segment_bytes = d["segment_bytes"].cast<uint64_t>();
  c.bells = d["bells"].cast<std::array<int, 2>>();
  c.bell_slot = d["bell_slot"].cast<uint32_t>();
  c.leads_host = d["leads_host"].cast<bool>();
  c.backend_name = d["backend_name"].cast<std::string>();
  c.backend_path = d["backend_path"].cast<std::string>();
  c.fusion_threshold = d["fusion_threshold"].cast<uint64_t>();
  c.dissolve_after_ns = static_cast<int64_t>(d["cycle_time_ms"].cast<double>() * 1e6);
  c.cache_capacity = d["cache_capacity"].cast<uint32_t>();
  c.stall_warn_ns = static_cast<int64_t>(d["stall_warn_s"].cast<double>() * 1e9);
  c.stall_abort_ns = static_cast<int64_t>(d["stall_abort_s"].cast<double>() * 1e9);
  c.start_deadline_ns = observe::now_ns() + static_cast<int64_t>(d["start_timeout_s"].cast<double>() * 1e9);
  c.first_handle = d["first_handle"].cast<uint64_t>();
  c.spin_ns = static_cast<int64_t>(d["spin_us"].cast<double>() * 1e3);
  c.engine_core = d["engine_core"].cast<int32_t>();
  return c;
}

void set_log_from(const py::dict& d) {
  observe::set_log(static_cast<observe::Level>(d["log_level"].cast<int>()), d["log_with_time"].cast<bool>(),
                   d["rank"].cast<int32_t>());
  plugin::set_log_sink([](int32_t level, const std::string& backend, const char*, int32_t, const std::string& text) {
    observe::log(static_cast<observe::Level>(level), backend + ": " + text);
  });
}

// Backends' threads keep to the cores of the thread that made the engine, wherever they are started from.
void keep_threads_within(int32_t engine_core) {
  plugin::set_thread_sink(
      [process = observe::own_cores(), engine_core] { observe::keep_within(process, engine_core); });
}

void require(bool ok, const std::string& text) {
  if (!ok) throw InvalidRequest(text);
}

void same_layout(const std::vector<queue::Tensor>& in, const std::vector<queue::Tensor>& out) {
  require(in.size() == out.size(), "as many outputs as inputs are needed: " + std::to_string(in.size()) + " inputs, " +
                                       std::to_string(out.size()) + " outputs");
  for (size_t i = 0; i < in.size(); ++i)
    require(in[i].dtype == out[i].dtype && in[i].shape == out[i].shape,
            "an output must have the shape and type of its input");
}

control::SignatureFields fields_of(control::OpKind kind, const std::vector<queue::Tensor>& in) {
  require(!in.empty(), std::string(control::op_name(kind)) + " needs at least one tensor");
  control::SignatureFields f;
  f.kind = kind;
  f.device_type = in[0].device_type;
  for (const auto& t : in) {
    require(t.device_type == f.device_type, "Tensors in list must be on same device.");
    require(t.device_type == "cpu", "no backend serves tensors on device type '" + t.device_type + "'");
    f.tensors.push_back({t.dtype, t.shape});
  }
  return f;
}

void check_reducible(const std::vector<queue::Tensor>& in, int op) {
  require(op >= 0 && op < HVD_REDOP_COUNT, "unknown reduce op " + std::to_string(op));
  for (const auto& t : in) {
    const bool eight_bits = t.dtype == HVD_FLOAT8_E4M3FN || t.dtype == HVD_FLOAT8_E5M2;
    require(!eight_bits, std::string("Tensor type ") + control::dtype_name(t.dtype) + " is not supported.");
    require(t.dtype != HVD_BOOL || op != HVD_AVG, "Average of bool tensors is not defined; use Sum, Min or Max.");
  }
}

}  // namespace

PyEngine::PyEngine(const py::dict& d) {
  set_log_from(d);
  EngineConfig c = config_of(d);
  keep_threads_within(c.engine_core);
  const int store_fd = d["store_fd"].cast<int>();
  std::unique_ptr<plugin::Store> store;
  if (store_fd >= 0)
    store = std::make_unique<control::StoreClient>(store_fd);
  else
    store = std::make_unique<LocalStore>();
  {
    py::gil_scoped_release nogil;
    engine_ = std::make_unique<Engine>(std::move(c), std::move(store));
  }
  static const int hook = ::pthread_atfork(nullptr, nullptr, in_child);
  (void)hook;
  engines().push_back(engine_.get());
}

PyEngine::~PyEngine() {
  std::erase(engines(), engine_.get());
  py::gil_scoped_release nogil;
  engine_.reset();
}

// Runs `make`, which looks at the caller's arguments. What it refuses is reported to the other ranks as well, so that
// they fail instead of waiting.
template <typename F>
auto PyEngine::checked(control::OpKind kind, const std::optional<std::string>& name, uint32_t set, F&& make) {
  try {
    return make();
  } catch (const std::exception& e) {
    engine_->poison(set, kind, name, e.what());
    throw;
  }
}

uint64_t PyEngine::submit(control::SignatureFields fields, const std::optional<std::string>& name, uint32_t set,
                          std::vector<queue::Tensor> in, std::vector<queue::Tensor> out, bool wait) {
  auto request = engine_->submit(std::move(fields), name, set, std::move(in), std::move(out), wait);
  if (!wait) return keep(std::move(request));
  await(*request);
  return 0;
}

uint64_t PyEngine::allreduce(py::handle inputs, py::handle outputs, const std::optional<std::string>& name, int op,
                             double prescale, double postscale, uint32_t process_set, bool wait) {
  std::vector<queue::Tensor> in, out;
  auto fields = checked(control::OpKind::Allreduce, name, process_set, [&] {
    in = tensors_of(inputs, inputs.is(outputs));
    out = inputs.is(outputs) ? in : tensors_of(outputs, true);
    same_layout(in, out);
    check_reducible(in, op);
    auto f = fields_of(control::OpKind::Allreduce, in);
    f.reduce_op = op;
    f.prescale = prescale;
    f.postscale = postscale;
    return f;
  });
  return submit(std::move(fields), name, process_set, std::move(in), std::move(out), wait);
}

uint64_t PyEngine::allgather(py::handle inputs, const std::optional<std::string>& name, uint32_t process_set) {
  std::vector<queue::Tensor> in;
  auto fields = checked(control::OpKind::Allgather, name, process_set, [&] {
    in = tensors_of(inputs, false);
    auto f = fields_of(control::OpKind::Allgather, in);
    for (auto& t : f.tensors)
      if (!t.shape.empty()) t.shape[0] = -1;
    return f;
  });
  return submit(std::move(fields), name, process_set, std::move(in), {}, false);
}

uint64_t PyEngine::broadcast(py::handle inputs, py::handle outputs, int root_rank,
                             const std::optional<std::string>& name, uint32_t process_set, bool wait) {
  std::vector<queue::Tensor> in, out;
  auto fields = checked(control::OpKind::Broadcast, name, process_set, [&] {
    in = tensors_of(inputs, inputs.is(outputs));
    out = inputs.is(outputs) ? in : tensors_of(outputs, true);
    same_layout(in, out);
    require(root_rank >= 0 && root_rank < engine_->config().size,
            "broadcast received invalid root rank " + std::to_string(root_rank) + " for provided process set");
    auto f = fields_of(control::OpKind::Broadcast, in);
    f.root = root_rank;
    return f;
  });
  return submit(std::move(fields), name, process_set, std::move(in), std::move(out), wait);
}

uint64_t PyEngine::barrier(uint32_t process_set, bool wait) {
  control::SignatureFields f;
  f.kind = control::OpKind::Barrier;
  return submit(std::move(f), std::nullopt, process_set, {}, {}, wait);
}

uint64_t PyEngine::join() { return keep(engine_->join()); }

void PyEngine::poison(const std::optional<std::string>& name, const std::string& text, uint32_t process_set,
                      const std::string& operation) {
  for (int k = 0; k <= static_cast<int>(control::OpKind::Barrier); ++k) {
    const auto kind = static_cast<control::OpKind>(k);
    if (operation == control::op_name(kind)) return engine_->poison(process_set, kind, name, text);
  }
  throw InvalidRequest("unknown operation '" + operation + "'");
}

// ------------------------------------------------------------------------------------------------- handles, waiting

uint64_t PyEngine::keep(queue::RequestRef request) {
  const uint64_t handle = request->handle;
  std::lock_guard lock(handles_mutex_);
  handles_.emplace(handle, std::move(request));
  return handle;
}

queue::RequestRef PyEngine::find(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  auto it = handles_.find(handle);
  if (it == handles_.end())
    throw InvalidRequest("Handle " + std::to_string(handle) + " was not created or has been cleared.");
  return it->second;
}

bool PyEngine::known(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  return handles_.contains(handle);
}

void PyEngine::release(uint64_t handle) {
  std::lock_guard lock(handles_mutex_);
  handles_.erase(handle);
}

void PyEngine::await(queue::Request& request) {
  while (!request.done()) {
    bool done;
    {
      py::gil_scoped_release nogil;
      done = engine_->wait(request, kSignalSliceNs);
    }
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  if (!request.ok()) throw EngineStopped(request.error());
}

bool PyEngine::poll(uint64_t handle) { return engine_->poll(*find(handle)); }

void PyEngine::wait(uint64_t handle) { await(*find(handle)); }

void PyEngine::wait_many(const std::vector<uint64_t>& handles) {
  std::vector<queue::RequestRef> requests;
  requests.reserve(handles.size());
  for (uint64_t h : handles) requests.push_back(find(h));
  std::optional<std::string> first_error;
  for (auto& r : requests) {
    try {
      await(*r);
    } catch (const EngineStopped& e) {
      if (!first_error) first_error = e.what();
    }
  }
  if (first_error) throw EngineStopped(*first_error);
}

py::capsule PyEngine::output(uint64_t handle, size_t index) {
  auto request = find(handle);
  require(request->done() && request->ok() && index < request->outputs.size(), "this handle has no such output");
  require(request->outputs[index].data != nullptr, "this output was taken already");
  return capsule_of(std::move(request->outputs[index]));
}

size_t PyEngine::output_count(uint64_t handle) { return find(handle)->outputs.size(); }

int PyEngine::last_joined(uint64_t handle) { return find(handle)->last_joined; }

void PyEngine::shutdown(const std::string& text, double timeout_s) {
  const int64_t deadline = observe::now_ns() + static_cast<int64_t>(timeout_s * 1e9);
  for (bool done = false; !done;) {
    {
      py::gil_scoped_release nogil;
      done = engine_->shutdown(text, deadline, kSignalSliceNs);
    }
    if (!done && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void PyEngine::abort(const std::string& cause) {
  py::gil_scoped_release nogil;
  engine_->abort(cause);
}

void PyEngine::close() {
  py::gil_scoped_release nogil;
  engine_->close();
}

py::dict PyEngine::backend_info() const {
  const auto& b = engine_->backend();
  py::dict d;
  d["name"] = b.name();
  d["version"] = b.version();
  d["vendor_lib"] = b.vendor_lib();
  d["path"] = b.path();
  d["abi_minor"] = b.abi_minor();
  return d;
}

void bind_engine(py::module_& m) {
  py::class_<PyEngine>(m, "Engine", "The engine of this process; hvd_core.runtime makes and keeps it.")
      .def(py::init<const py::dict&>(), py::arg("config"))
      .def("allreduce", &PyEngine::allreduce, py::arg("inputs"), py::arg("outputs"), py::arg("name"), py::arg("op"),
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("process_set") = 0, py::arg("wait") = false)
      .def("allgather", &PyEngine::allgather, py::arg("inputs"), py::arg("name"), py::arg("process_set") = 0)
      .def("broadcast", &PyEngine::broadcast, py::arg("inputs"), py::arg("outputs"), py::arg("root_rank"),
           py::arg("name"), py::arg("process_set") = 0, py::arg("wait") = false)
      .def("barrier", &PyEngine::barrier, py::arg("process_set") = 0, py::arg("wait") = false)
      .def("join", &PyEngine::join)
      .def("poison", &PyEngine::poison, py::arg("name"), py::arg("text"), py::arg("process_set") = 0,
           py::arg("operation") = "allreduce")
      .def("poll", &PyEngine::poll)
      .def("wait", &PyEngine::wait)
      .def("wait_many", &PyEngine::wait_many)
      .def("known", &PyEngine::known)
      .def("release", &PyEngine::release)
      .def("output", &PyEngine::output)
      .def("output_count", &PyEngine::output_count)
      .def("last_joined", &PyEngine::last_joined)
      .def("shutdown", &PyEngine::shutdown, py::arg("text"), py::arg("timeout_s"))
      .def("abort", &PyEngine::abort)
      .def("close", &PyEngine::close)
      .def("backend_info", &PyEngine::backend_info)
      .def_property_readonly("stopped", &PyEngine::stopped);
}

}  // namespace hvd::bind
