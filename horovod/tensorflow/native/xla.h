// The functions that programs compiled by XLA call: "hvd_collective" and "hvd_fact".
#pragma once

#include <string>

namespace hvd_tf {

// Makes them known to XLA, for programs on the host and on CUDA devices. "" or what is missing. Once; later calls give
// the first answer.
const std::string& register_with_xla();

}  // namespace hvd_tf
