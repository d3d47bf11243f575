// Text that another process, a backend or a file gave, made safe to show in a log, an exception or a terminal. Any
// thread.
#pragma once

#include <cstddef>
#include <string>

namespace hvd::observe {

constexpr size_t kLongestShown = size_t{64} << 10;

// `text` as valid UTF-8 without control characters. Control and direction characters and invalid bytes become \xNN or
// \u{NNNN}; tabs stay. A further line is indented, so that it cannot pass for a line of the log. Text above `most`
// bytes is cut, and the result says so. Text that is fine already is returned as it is, without an allocation.
std::string printable(std::string text, size_t most = kLongestShown);

}  // namespace hvd::observe
