// The extension module hvd_core._core: its classes, and which Python exception each C++ one becomes.
#include <pybind11/pybind11.h>

#include <system_error>

#include "engine/agreement/segment.h"
#include "engine/base/log.h"
#include "engine/base/text.h"
#include "engine/frontend/frontend.h"
#include "engine/plugins/errors.h"
#include "engine/plugins/host_api.h"
#include "engine/python/bindings.h"

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

// With errno, so that Python can tell which limit of the system was met.
void raise_os_error(const std::system_error& e) {
  const py::object value = py::make_tuple(e.code().value(), e.what());
  PyErr_SetObject(PyExc_OSError, value.ptr());
}

// The class of hvd_core/errors.py for a kind of failure.
const char* name_of(hvd::base::Failure failure) {
  switch (failure) {
    case hvd::base::Failure::Mistake:
    case hvd::base::Failure::Disagreement:
      return "OperationFailedError";
    case hvd::base::Failure::SetRemoved:
      return "ProcessSetRemovedError";
    case hvd::base::Failure::JobEnded:
      break;
  }
  return "JobEndedError";
}

// Throws what is not one of the engine's exceptions.
void set_engine_error(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const hvd::InvalidRequest& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const hvd::RequestFailed& e) {
    raise("hvd_core.errors", name_of(e.failure), e.what());
  } catch (const std::system_error& e) {
    raise_os_error(e);
  } catch (const hvd::plugins::LoadError& e) {
    raise("hvd_core.backends.errors", "BackendLoadError", hvd::base::printable(e.what()).c_str());
  } catch (const hvd::plugins::BackendError& e) {
    raise("hvd_core.backends.errors", "BackendOpenError", hvd::base::printable(e.what()).c_str());
  }
}

}  // namespace

void hvd::python::set_python_error() {
  try {
    set_engine_error(std::current_exception());
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const py::builtin_exception& e) {
    e.set_error();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

PYBIND11_MODULE(_core, m) {
  m.doc() = "The compiled engine of hvd-core.";
  py::register_local_exception_translator([](std::exception_ptr error) {
    if (error) set_engine_error(error);
  });
  // Python found no stderr when it started.
  if (py::module_::import("sys").attr("__stderr__").is_none()) {
    hvd::base::log_nothing();
    hvd::plugins::set_log_sink([](int32_t, const std::string&, const char*, int32_t, const std::string&) {});
  }
  hvd::python::bind_tensors(m);
  hvd::python::bind_engine(m);
  hvd::python::bind_python_backend(m);
  hvd::python::bind_plugin_phases(m);
  hvd::python::bind_diagnostics(m);
  hvd::python::bind_store(m);
  m.def("tell_failed_start", &hvd::agreement::tell_failed_start, py::arg("segment_fd"), py::arg("segment_bytes"),
        py::arg("rank"), py::arg("why"),
        "Tells the ranks of this host why `rank` ends its start, before its links go.");
  m.def(
      "frontend_table", [] { return reinterpret_cast<uintptr_t>(hvd::frontend::frontend_table()); },
      "The address of the hvd_fe_table of hvd/frontend_abi.h, by which code without Python calls the engine.");
}
