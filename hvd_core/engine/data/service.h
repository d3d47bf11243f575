// How an operation is served. A value; any thread.
#pragma once

#include <string>

namespace hvd::data {

enum class Service {
  Unsupported,
  Native,    // the backend does it
  Emulated,  // composed from other collectives, types or reductions of the backend
  Staged     // copied through host memory
};

constexpr const char* service_name(Service service) {
  switch (service) {
    case Service::Native:
      return "NATIVE";
    case Service::Emulated:
      return "EMULATED";
    case Service::Staged:
      return "STAGED";
    default:
      return "UNSUPPORTED";
  }
}

struct Served {
  Service service = Service::Unsupported;
  std::string how;  // "allgather + local reduction"; may be empty
};

}  // namespace hvd::data
