// Devices and backends as Python sees them: order on streams, results in a device's memory, and the service of each
// collective. See py_engine.h.
#include <pybind11/stl.h>

#include <set>
#include <string>

#include "engine/bind/py_engine.h"
#include "engine/bind/python_lock.h"
#include "engine/bind/signal_slices.h"
#include "engine/bind/tensor_view.h"
#include "engine/calls/checks.h"
#include "engine/observe/log.h"
#include "engine/types/collectives.h"
#include "engine/types/dtypes.h"
#include "engine/types/reductions.h"

namespace py = pybind11;

namespace hvd::bind {

using calls::require;

void PyEngine::await_end(queue::Request& request) {
  wait_in_slices([&] { return request.done(); }, [&](int64_t ns) { return engine_->finish(request, ns); });
  request.throw_if_failed();
}

void PyEngine::order(queue::Request& request, std::optional<uint64_t> stream) {
  await(request);
  if (stream && engine_->order_after(request, reinterpret_cast<void*>(*stream))) return;
  await_end(request);
}

void PyEngine::order_after(uint64_t handle, std::optional<uint64_t> stream) { order(*find(handle), stream); }

py::tuple PyEngine::output_info(uint64_t handle, size_t index) {
  auto request = find(handle);
  require(request->ok() && index < request->outputs.size(), "this handle has no such output");
  const queue::Output& o = request->outputs[index];
  return py::make_tuple(py::tuple(py::cast(o.shape)), o.dtype, o.device_type);
}

void PyEngine::copy_output(uint64_t handle, size_t index, py::handle tensor) {
  auto request = find(handle);
  await(*request);
  const auto end = calls::copy_output(*engine_, *request, index, tensor_of(tensor, true));
  if (!end) return;
  for (bool done = false; !done;) {
    {
      WithoutPythonLock unlocked;
      done = end->wait(observe::now_ns() + kSignalSliceNs);
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
    d["collective"] = types::collective_name(key.coll);
    d["dtype"] = types::dtype_name(key.dtype);
    d["op"] = types::reduce_op_name(key.op);
    d["backend"] = note.backend;
    d["served"] = data::service_name(note.served.service);
    d["how"] = note.served.how;
    list.append(std::move(d));
  }
  return list;
}

}  // namespace hvd::bind
