// hvd_core._core.PythonBackendTable, with which hvd_core/backends/python_backend.py runs a backend class.
//
// Its functions are called by that module's own threads, with the GIL. Functions that sleep release it.
#include <pybind11/stl.h>

#include <array>
#include <utility>
#include <vector>

#include "engine/python/backend_table.h"
#include "engine/python/bindings.h"
#include "engine/python/gil.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// Runs `body` without the GIL.
template <class F>
auto asleep(F&& body) {
  const ReleaseGil released;
  return body();
}

// The memory of each buffer as writable bytes, valid until the call is finished.
py::list views(const std::vector<hvd_buf>& bufs) {
  py::list all;
  for (const hvd_buf& b : bufs) {
    static char nothing;
    const bool empty = b.base == nullptr || b.bytes == 0;
    all.append(py::memoryview::from_memory(empty ? &nothing : static_cast<char*>(b.base) + b.offset,
                                           empty ? 0 : static_cast<py::ssize_t>(b.bytes)));
  }
  return all;
}

PySpec spec_of(std::string name, std::string version, uint64_t caps, uint64_t max_count, const py::function& serves,
               std::vector<std::array<std::string, 5>> options) {
  PySpec spec{std::move(name), std::move(version), caps, max_count, std::move(options), {}};
  for (int32_t coll = 0; coll < HVD_COLL_COUNT; ++coll)
    for (int32_t dtype = 0; dtype < HVD_DTYPE_COUNT; ++dtype)
      for (int32_t op = 0; op < HVD_REDOP_COUNT; ++op) {
        const auto place = static_cast<size_t>(PySpec::place(coll, dtype, op));
        // A movement has no reduction and a barrier no type: one question is enough.
        if (place == static_cast<size_t>((coll * HVD_DTYPE_COUNT + dtype) * HVD_REDOP_COUNT + op))
          spec.served[place] = py::cast<bool>(serves(coll, dtype, op));
      }
  return spec;
}

// Python gets a name, as in ("open", comm), rather than a number.
py::tuple next_task(PyTable& table) {
  auto [task, comm] = asleep([&] { return table.next_task(); });
  return py::make_tuple(task == PyTable::Task::kOpen ? "open" : "abort", std::move(comm));
}

PyOutcome outcome(hvd_rc rc, int32_t flags, std::string text) { return {rc, flags, std::move(text)}; }

void bind_comm(py::module_& m) {
  py::class_<PyCall, std::shared_ptr<PyCall>>(m, "PythonBackendCall", "One collective for a backend in Python.")
      .def_readonly("coll", &PyCall::coll)
      .def_readonly("dtype", &PyCall::dtype)
      .def_readonly("op", &PyCall::op)
      .def_readonly("root", &PyCall::root)
      .def_readonly("peer", &PyCall::peer)
      .def_readonly("counts", &PyCall::counts)
      .def_readonly("in_counts", &PyCall::in_counts)
      .def_readonly("out_counts", &PyCall::out_counts)
      .def_readonly("prescale", &PyCall::prescale)
      .def_readonly("postscale", &PyCall::postscale)
      .def_readonly("deadline_ns", &PyCall::deadline_ns)
      .def_readonly("seq", &PyCall::seq)
      .def_property_readonly("inputs", [](const PyCall& c) { return views(c.in); })
      .def_property_readonly("outputs", [](const PyCall& c) { return views(c.out); });

  py::class_<PyComm, std::shared_ptr<PyComm>>(m, "PythonBackendComm", "One communicator of a backend in Python.")
      .def_property_readonly("key", [](const PyComm& c) { return c.init.key; })
      .def_property_readonly("ranks", [](const PyComm& c) { return c.init.ranks; })
      .def_property_readonly("hosts", [](const PyComm& c) { return c.init.hosts; })
      .def_property_readonly("rank", [](const PyComm& c) { return c.init.rank; })
      .def_property_readonly("size", [](const PyComm& c) { return c.init.size; })
      .def_property_readonly("deadline_ns", [](const PyComm& c) { return c.init.deadline_ns; })
      .def_property_readonly("number", [](const PyComm& c) { return reinterpret_cast<uintptr_t>(&c); })
      .def_property_readonly("aborted", &PyComm::aborted)
      .def("opened", [](PyComm& c, hvd_rc rc, int32_t flags,
                        std::string text) { return c.opened(outcome(rc, flags, std::move(text))); })
      .def("enter_thread", [](const PyComm& c) { c.table().host()->thread_enter("python"); })
      .def("next_call", [](PyComm& c) { return asleep([&] { return c.next_call(); }); })
      .def("finished", [](PyComm& c, PyCall& call, hvd_rc rc, int32_t flags,
                          std::string text) { c.finished(call, outcome(rc, flags, std::move(text))); })
      .def("gone", &PyComm::gone)
      .def("store_set", [](PyComm& c, const std::string& key,
                           const py::bytes& value) { asleep([&, v = std::string(value)] { c.store_set(key, v); }); })
      .def("store_get",
           [](PyComm& c, const std::string& key, int64_t deadline_ns) {
             return py::bytes(asleep([&] { return c.store_get(key, deadline_ns); }));
           })
      .def("store_add", [](PyComm& c, const std::string& key,
                           int64_t delta) { return asleep([&] { return c.store_add(key, delta); }); })
      .def("store_del", [](PyComm& c, const std::string& key) { asleep([&] { c.store_del(key); }); });
}

void raise_call_error(const Error& e) {
  try {
    const auto type = py::module_::import("hvd_core.backends.errors").attr("BackendCallError");
    PyErr_SetObject(type.ptr(), type(e.code, e.text).ptr());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

}  // namespace

void bind_python_backend(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& e) {
      raise_call_error(e);
    }
  });
  bind_comm(m);
  // Tables are never given back: a loaded backend stays loaded.
  py::class_<PyTable, std::unique_ptr<PyTable, py::nodelete>>(m, "PythonBackendTable",
                                                              "The C table of a backend written in Python.")
      .def(py::init([](std::string name, std::string version, uint64_t caps, uint64_t max_count,
                       const py::function& serves, std::vector<std::array<std::string, 5>> options) {
             return &PyTable::claim(
                 spec_of(std::move(name), std::move(version), caps, max_count, serves, std::move(options)));
           }),
           py::arg("name"), py::arg("version"), py::arg("caps"), py::arg("max_count"), py::arg("serves"),
           py::arg("options") = std::vector<std::array<std::string, 5>>{})
      .def_property_readonly("entry_address", &PyTable::entry_address)
      .def("next_task", &next_task)
      .def("reset_after_fork", &PyTable::reset_after_fork)
      .def("log", &PyTable::log, py::arg("level"), py::arg("text"));
}

}  // namespace hvd::python
