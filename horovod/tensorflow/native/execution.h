// One execution of a collective: makes a call of the engine from a kernel's context, and outputs from its result.
#pragma once

#include "kernel.h"
#include "tf_api.h"

namespace hvd_tf {

// The engine's table; null until Python has passed it to set_engine().
const hvd_fe_table* engine();
void set_engine(const hvd_fe_table* table);

// TensorFlow's code for a status (hvd_fe_status) of the engine.
int code_of(int32_t status);

inline constexpr const char* kNotInitialized = "Horovod has not been initialized; use hvd.init().";

// Starts an execution. Waits for its end if the kernel blocks or there is no callback. Any thread.
void execute(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback);

}  // namespace hvd_tf
