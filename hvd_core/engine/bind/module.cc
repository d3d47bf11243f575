// The extension module hvd_core._core: its classes, and which Python exception each C++ one becomes.
#include <pybind11/pybind11.h>

#include <system_error>

#include "engine/bind/frame_seals.h"
#include "engine/bind/inspect.h"
#include "engine/bind/log_lines.h"
#include "engine/bind/plugin_phases.h"
#include "engine/bind/py_backend.h"
#include "engine/bind/py_engine.h"
#include "engine/bind/py_ordered_calls.h"
#include "engine/bind/sim.h"
#include "engine/bind/snapshots.h"
#include "engine/bind/store_server.h"
#include "engine/bind/tensor_types.h"
#include "engine/bind/tensor_view.h"
#include "engine/calls/frontend.h"
#include "engine/control/segment.h"
#include "engine/observe/log.h"
#include "engine/observe/printable.h"
#include "engine/plugin/errors.h"
#include "engine/plugin/host_api.h"

namespace py = pybind11;

namespace {

void raise(const char* module, const char* name, const char* text) {
  try {
    py::object type = py::module_::import(module).attr(name);
    PyErr_SetString(type.ptr(), text);
  } catch (py::error_already_set& e) {
    e.restore();
  }
}

// With the number, so that Python can tell which limit of the system was met.
void raise_os_error(const std::system_error& e) {
  const py::object value = py::make_tuple(e.code().value(), e.what());
  PyErr_SetObject(PyExc_OSError, value.ptr());
}

// The class of hvd_core/errors.py for a kind of failure.
const char* name_of(hvd::types::Failure failure) {
  switch (failure) {
    case hvd::types::Failure::Mistake:
    case hvd::types::Failure::Disagreement:
      return "OperationFailedError";
    case hvd::types::Failure::SetRemoved:
      return "ProcessSetRemovedError";
    case hvd::types::Failure::JobEnded:
      break;
  }
  return "JobEndedError";
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The compiled engine of hvd-core.";
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const hvd::InvalidRequest& e) {
      PyErr_SetString(PyExc_ValueError, e.what());
    } catch (const hvd::RequestFailed& e) {
      raise("hvd_core.errors", name_of(e.failure), e.what());
    } catch (const std::system_error& e) {
      raise_os_error(e);
    } catch (const hvd::plugin::LoadError& e) {
      raise("hvd_core.backends.errors", "BackendLoadError", hvd::observe::printable(e.what()).c_str());
    } catch (const hvd::plugin::BackendError& e) {
      raise("hvd_core.backends.errors", "BackendOpenError", hvd::observe::printable(e.what()).c_str());
    }
  });
  // Python found no stderr when it started.
  if (py::module_::import("sys").attr("__stderr__").is_none()) {
    hvd::observe::log_nothing();
    hvd::plugin::set_log_sink([](int32_t, const std::string&, const char*, int32_t, const std::string&) {});
  }
  hvd::bind::bind_tensor_ref(m);
  hvd::bind::bind_tensor_types(m);
  hvd::bind::bind_engine(m);
  hvd::bind::bind_ordered_calls(m);
  hvd::bind::bind_py_backend(m);
  hvd::bind::bind_inspect(m);
  hvd::bind::bind_plugin_phases(m);
  hvd::bind::bind_log_lines(m);
  hvd::bind::bind_sim(m);
  hvd::bind::bind_snapshots(m);
  hvd::bind::bind_frame_seals(m);
  hvd::bind::bind_store_server(m);
  m.def("tell_failed_start", &hvd::control::tell_failed_start, py::arg("segment_fd"), py::arg("segment_bytes"),
        py::arg("rank"), py::arg("why"),
        "Tells the ranks of this host why `rank` ends its start, before its links go.");
  m.def(
      "frontend_table", [] { return reinterpret_cast<uintptr_t>(hvd::calls::frontend_table()); },
      "The address of the hvd_fe_table of hvd/frontend_abi.h, by which code without Python calls the engine.");
}
