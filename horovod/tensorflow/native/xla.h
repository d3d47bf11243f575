// The functions that programs compiled by XLA call: "hvd_collective" and "hvd_fact".
#pragma once

#include <string>

namespace hvd_tf {

// Registers them with XLA, for programs on the host and on CUDA devices. Returns "", or the names of functions that
// this TensorFlow does not have. Registers once; later calls return the first result.
const std::string& register_with_xla();

}  // namespace hvd_tf
