// What kind of failure ended a request, for callers who tell them apart by more than the text. Equal on all ranks that
// fail for one reason.
#pragma once

#include <cstdint>

namespace hvd::control {

enum class Failure : uint8_t {
  InvalidArgument,  // what this rank, or a peer for the same name, asked for makes no sense
  Precondition,     // the ranks disagree, or ask for what cannot be done as things stand
  SetRemoved,
  JobOver  // it has ended or is broken
};

}  // namespace hvd::control
