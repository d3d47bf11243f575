// What TensorFlow is told about this library: operations, and kernels for types of devices.
#pragma once

#include <hvd/frontend_abi.h>

#include <string>

#include "tf_api.h"

namespace hvd_tf {

// Defines all operations, and kernels for tensors in host memory. What went wrong is added to problems().
void register_operations();

// Kernels for another type of device ("GPU", a PluggableDevice's type): on the device's memory where the engine serves
// it, else on host memory, to and from which TensorFlow copies. 1: on the device, 0: on host memory, -1: problems().
int register_device(const char* type, const hvd_fe_table& table);

// Registers one kernel; takes the builder.
void add_kernel(const char* operation, const char* device_type, TF_KernelBuilder* builder);

// What TensorFlow refused, "" for nothing.
std::string& problems();

// Whether kernels return before their operation is done. Otherwise they hold a thread of TensorFlow's each.
bool asynchronous();

}  // namespace hvd_tf
