// A rank's snapshot as the text of a TOLD message. The size is bounded. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "engine/observe/snapshot.h"

namespace hvd::control {

std::string encode(const observe::Snapshot& snapshot);
// Throws WireError.
observe::Snapshot decode(std::string_view text);

}  // namespace hvd::control
