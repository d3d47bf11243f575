// The extension module hvd_core._core: its classes, and which Python exception each C++ one becomes.
#include <pybind11/pybind11.h>

#include "engine/bind/inspect.h"
#include "engine/bind/py_backend.h"
#include "engine/bind/py_engine.h"
#include "engine/bind/sim.h"
#include "engine/bind/store_server.h"
#include "engine/bind/tensor_view.h"
#include "engine/calls/frontend.h"
#include "engine/plugin/errors.h"

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
    } catch (const hvd::plugin::LoadError& e) {
      raise("hvd_core.backends.errors", "BackendLoadError", e.what());
    } catch (const hvd::plugin::BackendError& e) {
      raise("hvd_core.backends.errors", "BackendOpenError", e.what());
    }
  });
  hvd::bind::bind_tensor_ref(m);
  hvd::bind::bind_engine(m);
  hvd::bind::bind_py_backend(m);
  hvd::bind::bind_inspect(m);
  hvd::bind::bind_sim(m);
  hvd::bind::bind_store_server(m);
  m.def(
      "frontend_table", [] { return reinterpret_cast<uintptr_t>(hvd::calls::frontend_table()); },
      "The address of the hvd_fe_table of hvd/frontend_abi.h, by which code without Python calls the engine.");
}
