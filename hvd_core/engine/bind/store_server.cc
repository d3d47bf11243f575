// See store_server.h.
#include "engine/bind/store_server.h"

#include <memory>
#include <string>

#include "engine/bind/python_lock.h"
#include "engine/store/store_server.h"

namespace py = pybind11;

namespace hvd::bind {
namespace {

std::unique_ptr<store::StoreServer> make_server(int listener, const py::bytes& secret, double handshake_s) {
  return std::make_unique<store::StoreServer>(listener, std::string(secret), static_cast<int64_t>(handshake_s * 1e9));
}

}  // namespace

void bind_store_server(py::module_& m) {
  py::class_<store::StoreServer>(m, "StoreServer", "The server of the job's store, on a thread that needs no Python.")
      .def(py::init(&make_server), py::arg("listener"), py::arg("secret"), py::arg("handshake_s"),
           "listener: a listening socket's descriptor, which the server takes over.")
      .def("clients", &store::StoreServer::clients)
      .def("close", &store::StoreServer::close, py::call_guard<WithoutPythonLock>());
}

}  // namespace hvd::bind
