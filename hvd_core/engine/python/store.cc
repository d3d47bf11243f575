// The job's store for Python (hvd_core/_bootstrap/store): its server, and the encryption of a client's connection.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "engine/python/bindings.h"
#include "engine/python/gil.h"
#include "engine/rendezvous/seal.h"
#include "engine/rendezvous/store_server.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using rendezvous::FrameSeal;
using rendezvous::Seals;

std::unique_ptr<Seals> make(const std::string& key) {
  using enum FrameSeal::Kind;
  return std::make_unique<Seals>(
      Seals{FrameSeal(key, rendezvous::kToStore, kEncrypted), FrameSeal(key, rendezvous::kFromStore, kEncrypted)});
}

py::bytes seal(Seals& seals, std::string_view payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string frame(sizeof size, '\0');
  std::memcpy(frame.data(), &size, sizeof size);
  seals.out.seal(size, payload, &frame);
  return py::bytes(frame);
}

py::bytes open(Seals& seals, const std::string& frame) {
  std::string payload = frame;
  const size_t n = payload.size() < FrameSeal::kTagBytes ? 0 : payload.size() - FrameSeal::kTagBytes;
  if (payload.size() < FrameSeal::kTagBytes ||
      !seals.in.open(static_cast<uint32_t>(n), payload.data(), n, payload.data() + n))
    throw py::value_error("the frame was changed on the way");
  payload.resize(n);
  return py::bytes(payload);
}

std::string problem() {
  return wire_security::CryptoLibrary::find() == nullptr ? wire_security::CryptoLibrary::problem() : std::string();
}

std::unique_ptr<rendezvous::StoreServer> make_server(int listener, const py::bytes& secret, double handshake_s) {
  return std::make_unique<rendezvous::StoreServer>(listener, std::string(secret),
                                                   static_cast<int64_t>(handshake_s * 1e9));
}

}  // namespace

void bind_store(py::module_& m) {
  py::class_<Seals>(m, "FrameSeals", "The encryption of a connection to the store, at the client's end. One thread.")
      .def(py::init(&make), py::arg("key"), "key: of the connection. RuntimeError if the system has no library for it.")
      .def("seal", &seal, py::arg("payload"), "The next frame: the payload's length, its ciphertext and the tag.")
      .def("open", &open, py::arg("frame"),
           "The text of the next ciphertext with its tag. ValueError if it was changed.");
  m.def("encryption_problem", &problem, "Why this process cannot encrypt, and what to do; '' if it can.");
  py::class_<rendezvous::StoreServer>(m, "StoreServer",
                                      "The server of the job's store, on a thread that needs no Python.")
      .def(py::init(&make_server), py::arg("listener"), py::arg("secret"), py::arg("handshake_s"),
           "listener: a listening socket's descriptor, which the server takes over.")
      .def("clients", &rendezvous::StoreServer::clients)
      .def("close", &rendezvous::StoreServer::close, py::call_guard<ReleaseGil>());
}

}  // namespace hvd::python
