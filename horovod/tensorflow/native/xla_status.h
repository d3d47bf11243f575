// A function that XLA calls reports a failure by writing into a XlaCustomCallStatus_, a structure around a
// std::optional<std::string>. TensorFlow does not export the function that sets it, but exports the one that reads it.
// So works() checks the layout before it is used.
#pragma once

#include <string>

namespace hvd_tf::xla_status {

// Whether TensorFlow reads the text that set_failure() has written.
bool works();

void set_failure(void* status, const std::string& text);

}  // namespace hvd_tf::xla_status
