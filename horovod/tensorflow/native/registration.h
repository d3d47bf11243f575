// Registers operations, and kernels for device types, with TensorFlow.
#pragma once

#include <hvd/frontend_abi.h>

#include <string>

#include "tf_api.h"

namespace hvd_tf {

// Defines all operations, and kernels for tensors in host memory. Failures are added to problems().
void register_operations();

// Registers kernels for another device type ("GPU", a PluggableDevice's type). They work on the device's memory if the
// engine serves it, else on host memory, to and from which TensorFlow copies, or they fail with the text `refusal`
// unless it is "". Returns 1 for kernels on the device, 0 for kernels on host memory, -1 for a failure (see
// problems()).
int register_device(const char* type, const char* refusal, const hvd_fe_table& table);

// Registers one kernel. Owns the builder.
void add_kernel(const char* operation, const char* device_type, TF_KernelBuilder* builder);

// The registrations that TensorFlow refused, with its reasons; "" if it has refused nothing.
std::string& problems();

// Whether kernels return before their operation is done. Otherwise each holds a thread of TensorFlow.
bool asynchronous();

}  // namespace hvd_tf
