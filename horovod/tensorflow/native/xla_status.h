// How a function that XLA calls reports a failure: by writing into a XlaCustomCallStatus_, which is a structure around
// a std::optional<std::string>. The function that sets it is not exported by TensorFlow, the one that reads it is, so
// the layout is tried before it is relied on.
#pragma once

#include <string>

namespace hvd_tf::xla_status {

// Whether a text that is written is the one that TensorFlow's own code reads.
bool works();

void set_failure(void* status, const std::string& text);

}  // namespace hvd_tf::xla_status
