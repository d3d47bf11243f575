// The variables of libeccl_sim.so.
#include "runtime.h"

namespace sim {

const Names kNames = {"TOPS_SIM_DEVICES", "TOPS_VISIBLE_DEVICES", "TOPS_SIM_DEVICE_BYTES",
                      "TOPS_SIM_MEMORY",  "TOPS_SIM_DELAY_US",    "ECCL_SIM_TIMEOUT_S"};

}  // namespace sim
