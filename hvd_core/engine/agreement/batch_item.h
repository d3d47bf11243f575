// One request in a batch, on its way from the log to the data plane. The participant knows the requests of its rank by
// tokens; the engine adds the request itself, and the executor carries out the same list.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/agreement/messages.h"

namespace hvd::calls {
class Request;
}

namespace hvd::agreement {

using RequestToken = uint64_t;  // the engine's number of a request; 0: this rank has no request

struct BatchItem {
  Item item;
  RequestToken token = 0;                   // 0 on a rank that has joined: it contributes neutral data
  std::shared_ptr<calls::Request> request;  // set by the engine; null where the token is 0
};

}  // namespace hvd::agreement
