// The kinds of failure that end a request. Ranks whose requests fail for one reason see the same kind.
#pragma once

#include <cstdint>

namespace hvd::base {

enum class Failure : uint8_t {
  Mistake,       // a call that makes no sense: on this rank, or on a peer under the same name (POISON)
  Disagreement,  // the ranks ask for different things, or all for something that cannot be done as things stand
  SetRemoved,    // the process set was removed while the request was in flight
  JobEnded       // shutdown, the death of a rank, an abort
};

}  // namespace hvd::base
