// One request in a batch, on its way from the log to the data plane: the executor carries out the items that the
// participant replays.
#pragma once

#include <memory>

#include "engine/agreement/messages.h"

namespace hvd::calls {
class Request;
}

namespace hvd::agreement {

using RequestRef = std::shared_ptr<calls::Request>;  // the protocol keeps it, and never looks into it

struct BatchItem {
  Item item;
  RequestRef request;  // null on a rank that has joined: it contributes neutral data
};

}  // namespace hvd::agreement
