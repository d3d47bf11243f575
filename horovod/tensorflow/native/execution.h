// One execution of a collective: from a kernel's context to a call of the engine, and back.
#pragma once

#include "kernel.h"
#include "tf_api.h"

namespace hvd_tf {

// The engine's table, null until Python has given it.
const hvd_fe_table* engine();
void set_engine(const hvd_fe_table* table);

// TensorFlow's code for a status of the engine.
int code_of(int32_t status);

inline constexpr const char* kNotInitialized = "Horovod has not been initialized; use hvd.init().";

// Starts an execution, or, where the kernel blocks or there is no callback, carries it out. Any thread.
void execute(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback);

}  // namespace hvd_tf
