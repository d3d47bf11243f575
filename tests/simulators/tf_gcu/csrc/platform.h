// What TensorFlow is told about the devices: who they are, and which functions work them.
#pragma once

#include "tf_abi.h"

namespace tf_gcu {

inline constexpr const char* kDeviceType = "GCU";  // tensors are on "/GCU:0"

// Fills the table of memory, streams, events and copies (executor.cc).
void fill_executor(SP_StreamExecutor* executor);

uint64_t timer_nanoseconds(SP_Timer timer);

// Registers the kernels (kernels.cc). Returns how many TensorFlow refused.
int register_kernels();

// How many kernels were launched and are not done.
int queued_kernels();

// While held, kernels wait where they are in their streams.
void hold_kernels(bool hold);

}  // namespace tf_gcu
